"""The `outpost` command: one verb a module in `commands/`.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from node import __version__
from node.errors import NodeError

VERBS = ("serve", "ask", "status", "prewarm", "models", "profile", "fleet", "doctor", "tune", "bench")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; each module in `commands/` adds its verb with `register` and runs it with `run`."""
    parser = argparse.ArgumentParser(
        prog="outpost",
        description="Run a language model on this machine and answer through the OpenAI API.",
        epilog="Start with: outpost models pull && outpost serve",
    )
    parser.add_argument("--version", action="version", version=f"outpost {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        importlib.import_module(f"node.commands.{verb}").register(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _open_streams()
    try:
        args = build_parser().parse_args(argv)
        return int(args.run(args))
    except SystemExit as stop:  # argparse has printed its message
        return int(stop.code or 0)
    except NodeError as error:
        print(f"outpost: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away, as in `outpost models list | head -1`
        sys.stderr.close()
        return 0
    except OSError as error:  # of this machine, not of ours: a disk that is full, a folder that may not be written
        print(f"outpost: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1


def _open_streams() -> None:
    """What was closed by the caller (`>&-`) goes nowhere; Python has None for it, and print takes that for stdout."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # for as long as the process lives
