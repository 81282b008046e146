"""A node that answers neighbours without certificates, in a process of its own: `python -m tests.support.mesh_peer`.

It prints one line, the address of its /mesh/generate, once it is ready. Arguments are settings as KEY=VALUE.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from node.layers import load
from node.runtime import Node
from tests.support.near import Near


async def main(changes: list[str]) -> None:
    """Serve until the process is ended."""
    flags = dict(change.split("=", 1) for change in changes)
    node = Node(load(environment={}, flags={"server.port": "0", "log.level": "error", **flags}), neighbourhood=Near())
    await node.start()
    app = web.Application()
    node.crossing.serve(app, lambda request: "tester")
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", node.crossing.digest, flush=True)  # noqa: T201
    await asyncio.Event().wait()


@contextmanager
def peer_process(*changes: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its address and its model's digest; killed at the end if it still runs."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OUTPOST_") or key == "OUTPOST_HOME"}
    command = [sys.executable, "-m", "tests.support.mesh_peer", *changes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert len(words) == 2, f"the peer ended with {process.poll()}"
            yield process, words[0], words[1]
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
