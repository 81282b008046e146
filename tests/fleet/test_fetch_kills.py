"""A fetch that is killed again and again ends with the very file, and costs little more than the file has.

OUTPOST_TEST_KILLS=100 does it with the default model's file and a hundred kills; here it is a small file and a few.
What a fetch costs is counted where it cannot lie: by the kernel, as bytes that the other side has acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import random
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.fleet import chunks, places
from node.fleet.budget import Budget
from node.fleet.directive import ChunkIndex
from node.fleet.fetch import Fetch
from node.fleet.origin import Origin
from node.fleet.part import part_path
from node.models.weights import locate
from tests.support.model_files import digest, gguf

KILLS = int(os.environ.get("OUTPOST_TEST_KILLS", "0"))
FEW = 8
_BYTES_ACKED = 120  # in struct tcp_info
_PIECE = 16 << 10


class SlowServer:
    """A file behind ranges, at `rate` bytes a second, in a process of its own."""

    def __init__(self, file: Path, packed: dict[str, bytes], rate: float) -> None:
        self._data, self._packed, self._rate = file.read_bytes(), packed, rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._counters = mmap.mmap(-1, 16)  # bytes acknowledged; requests that got their first byte
        self._lock = threading.Lock()
        self.process = fork(self._serve)
        self._listener.close()

    @property
    def acknowledged(self) -> int:
        return int(struct.unpack_from("<Q", self._counters, 0)[0])

    @property
    def begun(self) -> int:
        return int(struct.unpack_from("<Q", self._counters, 8)[0])

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _add(self, place: int, count: int) -> None:
        with self._lock:
            struct.pack_into("<Q", self._counters, place, struct.unpack_from("<Q", self._counters, place)[0] + count)

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        try:
            while self._answer(connection):
                pass
        except OSError:
            pass
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        self._add(0, struct.unpack_from("<Q", info, _BYTES_ACKED)[0])
        connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(4096)
            if not piece:
                return False
            head += piece
        name = head.split(b" ", 2)[1].decode().rpartition("/")[2]
        data = self._packed[name] if name in self._packed else self._data
        window = re.search(rb"bytes=(\d+)-(\d+)", head)
        assert window
        begin, end = int(window[1]), int(window[2]) + 1
        connection.sendall(
            f"HTTP/1.1 206 P\r\nContent-Length: {end - begin}\r\nContent-Range: bytes {begin}-{end - 1}/{len(data)}\r\n"
            "\r\n".encode()
        )
        self._add(8, 1)
        for at in range(begin, end, _PIECE):
            connection.sendall(data[at : min(end, at + _PIECE)])
            time.sleep(_PIECE / self._rate)
        return True


def fork(work: Callable[[], object]) -> int:
    """Do it in a process that begins at once; Python is loaded already."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # a child must never go on as the test
            os._exit(1)
    return pid


@pytest.fixture
def material(tmp_path: Path) -> Iterator[tuple[ChunkIndex, SlowServer]]:
    source = locate("smollm2-135m-instruct") if KILLS else gguf(tmp_path / "model.gguf", blocks=7)
    packed: dict[str, bytes] = {}
    index = chunks.index(source, lambda *_: None, lambda sha256, data: packed.__setitem__(sha256, data))
    names = {places.chunk_file(sha256).rpartition("/")[2]: data for sha256, data in packed.items()}
    cost = sum(chunk.packed or chunk.length for chunk in index.chunks)
    # So slow that every life but the last can be killed while bytes come.
    server = SlowServer(source, names, rate=cost / ((KILLS or FEW) * 0.12))
    yield index, server
    server.close()


@pytest.mark.timeout(900)
def test_kills_at_any_moment(tmp_path: Path, material: tuple[ChunkIndex, SlowServer]) -> None:
    index, server = material
    target, dice, kills = tmp_path / "node" / "model.gguf", random.Random(7), 0
    cost = sum(chunk.packed or chunk.length for chunk in index.chunks)

    def live() -> None:
        asyncio.run(Fetch(index, target, [Origin(server.url, Budget(), stall_s=60)]).run())

    while not target.exists():
        before, process = server.begun, fork(live)
        if kills < (KILLS or FEW) and not is_over(process, lambda before=before: server.begun > before):
            time.sleep(dice.uniform(0, 0.2) if dice.random() < 0.9 else 0.0)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            kills += 1
        elif kills >= (KILLS or FEW):
            os.waitpid(process, 0)
    assert digest(target) == index.sha256
    assert not part_path(target).exists()
    time.sleep(0.5)  # the server's last connections
    share = server.acknowledged / cost
    logging.getLogger(__name__).warning("%d kills, %.3f x of %d bytes", kills, share, cost)
    assert kills >= (KILLS or FEW) * 0.5
    assert share <= 1.2


def is_over(process: int, condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; True if the process ended before."""
    until = time.monotonic() + 120
    while not condition():
        if os.waitpid(process, os.WNOHANG)[0]:
            return True
        assert time.monotonic() < until
        time.sleep(0.002)
    return False
