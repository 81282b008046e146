"""A node with an echo engine that nobody can reach through while a file exists, and that puts records by itself.

Run as a program: FOLDER PORT HUB FIRST LAST. It prints `ready`, then `ack NUMBER` after each record is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from node.errors import Unavailable
from node.generation import Request, Sink, TokenSource
from node.layers import load
from node.runtime import Node
from node.serving import Serving

AT_A_TIME = 20


class Cut:
    """A stage that refuses everything while the file is there."""

    def __init__(self, source: TokenSource, file: Path) -> None:
        self._source, self._file = source, file

    def submit(self, request: Request, sink: Sink) -> None:
        if self._file.exists():
            raise Unavailable("Nobody can answer.")
        self._source.submit(request, sink)

    def cancel(self, request_id: str) -> None:
        self._source.cancel(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        self._source.hold(request_id, held)


class KeepingNode(Node):
    """The node, with that stage in front."""

    file: Path

    def _front(self, serving: Serving) -> TokenSource:
        return Cut(super()._front(serving), self.file)


async def main(folder: Path, port: str, hub: str, first: int, last: int) -> None:
    flags = {
        **{"server.port": port, "engine.kind": "echo", "hub.url": hub, "hub.bytes_per_s": "0", "log.level": "error"},
        **{"hub.batch_bytes": "16384", "outbox.later_at_a_time": "4", "streams.durability": "off"},
        **{"outbox.database": str(folder / "outbox.db"), "outbox.callbacks": hub},
        "outbox.callback_secret_file": str(folder / "secret"),
    }
    node = KeepingNode(load(environment={}, flags=flags))
    node.file = folder / "cut"
    await node.start()
    os.write(1, b"ready\n")
    outbox = node.post.outbox
    assert outbox is not None

    async def put(number: int) -> None:
        await outbox.put("node", b"record %d" % number, priority="telemetry", key=f"record-{number}")

    for start in range(first, last, AT_A_TIME):
        numbers = range(start, min(start + AT_A_TIME, last))
        await asyncio.gather(*map(put, numbers))
        os.write(1, b"".join(b"ack %d\n" % number for number in numbers))
        await asyncio.sleep(0)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
