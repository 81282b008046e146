"""A node without a model, as a process of its own: `python -m tests.support.light_node FOLDER`.

FOLDER holds its enrolment. It is among its neighbours as every node, and says what `/v1/status` says of them on port
8080 of this host's loopback; asked with `?use=1` it chooses from its candidates, as every request makes a node do.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from aiohttp import web

from node import log
from node.mesh.neighbours import Neighbours
from node.settings import Mesh
from tests.mesh.nodes import Still


async def main(folder: Path) -> None:
    neighbours = Neighbours(Mesh(), folder, Still())
    await neighbours.start()

    async def status(request: web.Request) -> web.Response:
        chosen = [neighbour.id for neighbour in neighbours.candidates()] if request.query.get("use") else []
        return web.json_response({**neighbours.status(), "candidates": chosen})

    app = web.Application()
    app.router.add_get("/v1/status", status)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 8080).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await runner.cleanup()
    await neighbours.stop()


if __name__ == "__main__":
    log.configure("info")
    asyncio.run(main(Path(sys.argv[1])))
