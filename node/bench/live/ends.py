"""One end of one scheme, in a process of its own on its host: `python -m node.bench.live.ends near|far SCRIPT`.

The far end asks all there is to ask and ends by itself; the near one ends by SIGTERM. What they saw goes to stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import sys
from types import ModuleType

import msgspec

from node.bench.live import download, quicends, rivalends, sseends
from node.bench.live.script import Log, Script

SCHEMES = ["link", *rivalends.SCHEMES, *sseends.SCHEMES, quicends.SCHEME]
PORTS = {scheme: 5001 + i for i, scheme in enumerate([*SCHEMES, download.SCHEME])}
READY = "ready"


def obstacle(scheme: str) -> str:
    """Why a scheme cannot be measured here; "" where it can."""
    if scheme in sseends.SCHEMES:
        return sseends.obstacle(scheme)
    return quicends.obstacle() if scheme == quicends.SCHEME else ""


def _module(scheme: str) -> ModuleType:
    if scheme in rivalends.SCHEMES:
        return rivalends
    if scheme in sseends.SCHEMES:
        return sseends
    if scheme == "link":
        return importlib.import_module("node.bench.live.linkends")
    return download if scheme == download.SCHEME else quicends


async def play(script: Script, far: bool) -> Log:
    """One end's part."""
    log, module = Log(), _module(script.scheme)
    gc.freeze()
    task = asyncio.ensure_future(module.far(script, log) if far else module.near(script, log))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if not far:
        loop.call_later(0.05, lambda: print(READY, flush=True))  # noqa: T201  # it listens by then
    with contextlib.suppress(asyncio.CancelledError, TimeoutError):
        async with asyncio.timeout(script.deadline_s if far else None):
            await task
    return log


def main(words: list[str]) -> int:
    """An end's process."""
    script = msgspec.json.decode(words[1], type=Script)
    if script.priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    log = asyncio.run(play(script, words[0] == "far"))
    print(msgspec.json.encode(log).decode(), flush=True)  # noqa: T201  # its parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
