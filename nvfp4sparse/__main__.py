# SPDX-License-Identifier: Apache-2.0
"""`python -m nvfp4sparse [demo | info | bench]`: the command line; no command means demo."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = ("demo", "info", "bench")


def size(text: str) -> int:
    """Parse a number of rows or columns."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def columns(text: str) -> int:
    """Parse k, the length of the dot products."""
    value = size(text)
    if value % 16:
        raise argparse.ArgumentTypeError(f"k must be a multiple of 16, got {value}")
    return value


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; its result has the attribute `command`."""
    parser = argparse.ArgumentParser(
        prog="python -m nvfp4sparse", description="2:4 sparse NVFP4 times NVFP4."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    demo = commands.add_parser("demo", help="one product on everything that can run it here")
    demo.add_argument("--m", type=size, default=64, help="rows of the sparse A (64)")
    demo.add_argument("--n", type=size, default=2048, help="rows of B (2048)")
    demo.add_argument("--k", type=columns, default=2048, help="columns of both (2048)")
    demo.add_argument("--seed", type=int, default=0)

    commands.add_parser("info", help="version, build, GPUs and the kernel table")

    bench = commands.add_parser(
        "bench", help="time the kernels against the read-once floor and other libraries"
    )
    bench.add_argument("--m", type=size, nargs="+", help="rows of the sparse A")
    bench.add_argument("--n", type=size, nargs="+", help="rows of B (2048)")
    bench.add_argument("--k", type=columns, nargs="+", help="columns of both (2048)")
    bench.add_argument(
        "--transposed",
        action="store_true",
        help="sparse weights: A has many rows, B is a few tokens, C is written column-major",
    )
    ours = bench.add_mutually_exclusive_group()
    ours.add_argument("--kernels", nargs="+", metavar="NAME", help="only these of our kernels")
    ours.add_argument(
        "--chosen", action="store_true", help="of our kernels only the one that a call would choose"
    )
    bench.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    instead = bench.add_mutually_exclusive_group()
    instead.add_argument(
        "--host", action="store_true", help="what a call costs the host, instead of the device"
    )
    instead.add_argument(
        "--sweep",
        choices=("m", "n"),
        help="the chosen kernel alone, at every m up to 512 or, C column-major, n up to 256",
    )
    bench.add_argument("--quick", action="store_true", help="fewer problems and calls")
    bench.add_argument("--seed", type=int, default=0)
    bench.add_argument("--commit", help="what the CSV says of the source (asked of git)")
    bench.add_argument(
        "--out", default="nvfp4sparse-bench", metavar="DIR", help="for the CSV and plots"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words.insert(0, COMMANDS[0])
    options = build_parser().parse_args(words)
    name = options.command
    if name == "bench":
        name = "host" if options.host else "sweep" if options.sweep else name
    command = importlib.import_module(f".cli.{name}", __package__)
    return command.run(options)


if __name__ == "__main__":
    sys.exit(main())
