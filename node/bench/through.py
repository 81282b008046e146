"""A node that tells its bench something of its inside: both ends of it.

`python -m MODULE FILE serve …` is `outpost serve …` where MODULE calls `serve` with these words; SIGUSR1 makes it write
what it has to tell to FILE, as JSON, whole or not at all. `asked` is the bench's side.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from node.bench.process import NodeProcess

PATIENCE_S = 60.0

Told = TypeVar("Told")


def serve(words: Sequence[str], tell: Callable[[], object]) -> None:
    """Be the node; `words` are FILE and the command's own, `tell` gives what there is to tell."""
    file = Path(words[0])
    signal.signal(signal.SIGUSR1, lambda number, frame: write(file, tell()))
    sys.argv = ["outpost", *words[1:]]
    runpy.run_module("node", run_name="__main__", alter_sys=True)


def write(file: Path, told: object) -> None:
    """Write it, whole or not at all."""
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(told))
    os.replace(part, file)


async def asked(node: NodeProcess, file: Path, kind: type[Told]) -> Told:
    """What a node has to tell that was told to write it to `file`."""
    os.kill(node.pid, signal.SIGUSR1)
    async with asyncio.timeout(PATIENCE_S):
        while (told := _taken(file)) is None:  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.01)
    return msgspec.json.decode(told, type=kind)


def _taken(file: Path) -> bytes | None:
    """What stands in a file, once; None where it is not there yet."""
    try:
        written = file.read_bytes()
    except FileNotFoundError:
        return None
    file.unlink()
    return written
