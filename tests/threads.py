# SPDX-License-Identifier: Apache-2.0
"""A thread's exception belongs to the test, which else passes without it."""

import threading


def run_on_threads(work, arguments):
    """Run `work` on a thread for each argument; raise what one of them raised."""
    errors = []

    def guarded(argument):
        try:
            work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
