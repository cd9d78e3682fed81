# SPDX-License-Identifier: Apache-2.0
"""What test_processes.py runs on a GPU, each in a process where nothing has used CUDA yet.

One process imports PyTorch, which takes long, and forks a child for every case: fork before the
first use is itself something that must work. Prints a JSON object of case to complaint, "" if none.
"""

import json
import os
import sys
import tempfile
import threading
import traceback

import torch

import nvfp4sparse


def operands():
    """Ones at positions 0 and 1, scales 1, a B of ones: every element of C is k / 2 = 256."""
    parts = ((128, 0x22), (128, 0x04), (32, 0x38), (256, 0x22), (32, 0x38))
    return [torch.full((16, width), byte, dtype=torch.uint8).cuda() for width, byte in parts]


def first_call_in_a_capture(mode, kernel):
    """Nothing of the package has run before the stream began to capture."""
    inputs = operands()
    out = torch.zeros(16, 16, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        own = nvfp4sparse.sparse_gemm(*inputs, kernel=kernel)
        nvfp4sparse.sparse_gemm(*inputs, out, kernel=kernel)
    graph.replay()
    torch.cuda.synchronize()
    eager = nvfp4sparse.sparse_gemm(*inputs, kernel=kernel)
    assert (eager == 256).all()
    assert torch.equal(own, eager)
    assert torch.equal(out, eager)


def capture_global():
    first_call_in_a_capture("global", None)


def capture_thread_local():
    first_call_in_a_capture("thread_local", "naive")


def capture_relaxed():
    first_call_in_a_capture("relaxed", None)


def first_call_on_a_thread():
    """A thread without a context; the current device stays what it was."""
    inputs = operands()
    torch.cuda.synchronize()
    results = []
    thread = threading.Thread(target=lambda: results.append(nvfp4sparse.sparse_gemm(*inputs)))
    thread.start()
    thread.join()
    assert (results[0] == 256).all()
    assert torch.cuda.current_device() == 0


def fork_after_the_first_use():
    """The child gets a clear error, and the parent goes on."""
    inputs = operands()
    out = nvfp4sparse.sparse_gemm(*inputs)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        try:
            nvfp4sparse.sparse_gemm(*inputs, out)
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (nvfp4sparse.sparse_gemm(*inputs) == 256).all()


def fork_of_the_cpu_path():
    """What the CPU does goes on in a child, CUDA or not."""
    nvfp4sparse.sparse_gemm(*operands())
    host = [operand.cpu() for operand in operands()]
    child = os.fork()
    if child == 0:
        os._exit(0 if (nvfp4sparse.sparse_gemm(*host) == 256).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


CASES = (
    capture_global,
    capture_thread_local,
    capture_relaxed,
    first_call_on_a_thread,
    fork_after_the_first_use,
    fork_of_the_cpu_path,
)


def run(case):
    """Fork, run, and return what the child complained of."""
    with tempfile.TemporaryFile("w+") as log:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                case()
                status = 0
            except BaseException:
                traceback.print_exc(file=log)
                log.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        return "" if status == 0 else f"status {status}\n{log.read()}"


if __name__ == "__main__":
    json.dump({case.__name__: run(case) for case in CASES}, sys.stdout)
