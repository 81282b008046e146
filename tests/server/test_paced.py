"""One reader's pace: at once while it reads, in chunks while it lags, held when far behind, cut off when stuck."""

from __future__ import annotations

import asyncio
import socket

import pytest

from node.generation import Finished, Logprob, Request, Token
from node.server import paced as paced_module
from node.server.meter import Meter
from node.server.paced import Paced, Wire
from node.stream.pacer import CAPACITY, ENTRY_BYTES, START_WINDOW
from node.stream.session import Session
from tests.server.wire import chat, open_post, stream, text_of, until
from tests.support.service import ScriptedSource, running, scripted

PATH = "/v1/chat/completions"


class Pipe:
    """A transport that a test drains; `takes` bytes vanish at every look."""

    def __init__(self, connection: socket.socket | None = None, takes: int = 0) -> None:
        self.unread, self.takes = 0, takes
        self.closing = self.aborted = False
        self.looks = 0
        self._connection = connection

    def get_write_buffer_size(self) -> int:
        self.looks += 1
        self.unread = max(0, self.unread - self.takes)
        return self.unread

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self._connection

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True


class Writer:
    """A reader's connection with a generation on it, as SSE and WebSocket use it."""

    def __init__(self, pipe: Pipe | None = None, session: Session | None = None, wire: Wire | None = None) -> None:
        self.source = ScriptedSource()
        self.pipe = pipe or Pipe(takes=1 << 30)
        self.session = session or Session(Request("r", (1,), 1 << 30), self.source)
        self.meter = Meter(scripted()[0])
        self.wire = wire or Wire(self.pipe, self.meter)
        self.pieces: list[str] = []

    def made(self, *texts: str) -> None:
        for text in texts:
            self.session.feed(Token(1, text.encode()))

    def end(self) -> None:
        self.session.feed(Finished("stop", 1, 0))

    async def run(self) -> str:
        """Read to the end."""
        with Paced(self.wire, self.session) as paced:
            while not paced.done:
                if piece := await paced.next(1.0):
                    self.pieces.append(piece.text)
                    self.pipe.unread += len(piece.text)
                    self.wire.wrote(len(piece.text))
        return "".join(self.pieces)


async def test_every_token_goes_at_once_while_the_reader_reads() -> None:
    writer = Writer()
    task = asyncio.create_task(writer.run())
    for number in range(50):
        await asyncio.sleep(0)
        writer.made(f"{number} ")
        await asyncio.sleep(0)
    writer.end()
    assert await task == "".join(f"{number} " for number in range(50))
    assert len(writer.pieces) == 50
    assert writer.pipe.looks <= 2  # looking costs


async def test_a_lagging_reader_gets_whole_tokens_in_chunks() -> None:
    pipe = Pipe(takes=1000)
    writer = Writer(pipe)
    texts = ["é" * 100] * 200  # 40 kB
    writer.made(*texts)
    writer.end()
    pipe.unread = START_WINDOW
    writer.wire.wrote(START_WINDOW)
    assert await writer.run() == "".join(texts)
    assert 1 < len(writer.pieces) < 150
    assert all(len(piece) % 100 == 0 for piece in writer.pieces)


async def test_silence_and_the_end_are_told_apart() -> None:
    writer = Writer()
    with Paced(writer.wire, writer.session) as paced:
        assert await paced.next(0.01) is None
        assert not paced.done
        writer.end()
        assert await paced.next(0.01) is None
        assert paced.done


async def test_a_reader_comes_back_in_the_middle() -> None:
    writer = Writer()
    writer.made("a", "b", "c", "d")
    with Paced(writer.wire, writer.session, cursor=2) as paced:
        piece = await paced.next(0.01)
        assert piece is not None
        assert (piece.text, piece.cursor) == ("cd", 4)


async def test_a_reader_of_a_byte_a_second_costs_little_and_its_generation_is_held() -> None:
    """10,000 tokens that nobody takes: a few kilobytes are written, the rest waits, and no more is made."""
    pipe = Pipe(takes=0)
    writer = Writer(pipe)
    task = asyncio.create_task(writer.run())
    made = 0
    while not writer.source.held and made < 10_000:
        writer.made("word ")
        made += 1
        if made % 300 == 0:  # so that a busy machine does not make more between two looks
            looks = pipe.looks
            await until(lambda looks=looks: pipe.looks > looks)  # type: ignore[misc]
    await until(lambda: writer.source.held == [("r", True)])
    assert pipe.unread < 4 * START_WINDOW < CAPACITY
    assert made * ENTRY_BYTES < 1.5 * CAPACITY
    assert b"llm_readers_lagging 1.0" in writer.meter.exposition()
    assert b'llm_generation_holds_total{model="scripted"} 1.0' in writer.meter.exposition()
    pipe.takes = 1 << 20
    await until(lambda: writer.source.held[1:] == [("r", False)])
    writer.end()
    assert await task == "word " * made
    assert b"llm_readers_lagging 0.0" in writer.meter.exposition()


async def test_a_held_generation_goes_on_when_its_reader_leaves_and_another_reads() -> None:
    slow = Writer(Pipe())
    task = asyncio.create_task(slow.run())
    await asyncio.sleep(0)
    slow.made(*["word "] * 2000)
    await until(lambda: slow.source.held == [("r", True)])
    quick = Writer(session=slow.session)
    reading = asyncio.create_task(quick.run())
    await until(lambda: slow.source.held[1:] == [("r", False)])
    slow.end()
    assert await reading == "word " * 2000
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_generations_on_one_connection_share_its_window() -> None:
    pipe = Pipe(takes=0)
    first = Writer(pipe)
    second = Writer(pipe, wire=first.wire)
    first.made(*["x" * 100] * 300)
    second.made(*["y" * 100] * 300)
    tasks = [asyncio.create_task(one.run()) for one in (first, second)]
    await asyncio.sleep(0.05)
    assert pipe.unread < 2 * START_WINDOW
    pipe.takes = 2000
    first.end()
    second.end()
    assert await asyncio.gather(*tasks) == ["x" * 30_000, "y" * 30_000]


async def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_module, "STALL_S", 0.1)
    writer = Writer(Pipe(takes=0))
    writer.made(*["x" * 100] * 300)
    with pytest.raises(ConnectionResetError, match="takes nothing"):
        await writer.run()
    assert writer.pipe.aborted


async def test_a_reader_that_is_gone() -> None:
    writer = Writer()
    writer.pipe.closing = True
    writer.made("x")
    with pytest.raises(ConnectionResetError, match="gone"):
        await writer.run()


async def test_tcp_tells_round_trip_and_queue() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(server.getsockname())
        connection, _ = server.accept()
        with connection:
            connection.setblocking(False)
            sent = connection.send(b"x" * (1 << 20))
            wire = Wire(Pipe(connection), Meter(scripted()[0]))
            wire.wrote(sent)
            assert wire.room() == 0
            assert 0 < wire.pacer.unread <= sent
            assert wire.pacer.rtt_s is not None
            assert 0 < wire.pacer.rtt_s < 1
            assert b"llm_reader_rtt_seconds_count" in wire.meter.exposition()
            wire.hear(0.9, 0.2)
            await asyncio.sleep(wire.until_look())
            wire.room()
            assert wire.pacer.rtt_s == 0.9  # a ping sees through a proxy
        assert paced_module._in_kernel(connection) == 0  # closed
        assert paced_module._round_trip(connection) == (None, None)


async def test_sockets_that_tell_nothing() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert paced_module._round_trip(left) == (None, None)
    assert (paced_module._round_trip(None), paced_module._in_kernel(None)) == ((None, None), 0)


def test_logprobs_count() -> None:
    piece = Session(Request("r", (1,), 9), ScriptedSource())
    piece.feed(Token(1, b"a", Logprob(-1.0, ((1, -1.0), (2, -2.0)))))
    taken = piece.take(0)
    assert taken is not None
    assert paced_module._size(taken) > 200


async def test_seven_readers_do_not_feel_one_that_reads_nothing() -> None:
    """Over real connections: the slow one's text waits once, in its journal, and the others are whole and quick."""
    service, source = scripted(*["word "] * 1500, slots=8)
    async with running(service) as (url, runner):
        _, slow = await open_post(url, PATH, chat(stream=True))
        texts = await asyncio.wait_for(asyncio.gather(*(stream(url) for _ in range(7))), 100)
        assert all(text_of(chunks) == "word " * 1500 for chunks in texts)
        assert runner.server is not None
        await until(lambda: source.busy == 0)
        assert sum(one.transport.get_write_buffer_size() for one in runner.server.connections if one.transport) < 65536
        slow.close()
