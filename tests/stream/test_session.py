"""One generation, many readers."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from node.errors import EngineFailed
from node.generation import End, Entry, Failed, Finished, Request, Started, Token
from node.stream import session as session_module
from node.stream.session import Session
from tests.support.sources import HandSource


def make(**extra: object) -> tuple[Session, list[str]]:
    source = HandSource()
    request = Request(id="r", prompt=(1, 2, 3), max_tokens=99, **extra)  # type: ignore[arg-type]
    return Session(request, source), source.cancelled


def feed_text(session: Session, *pieces: str) -> None:
    for number, piece in enumerate(pieces):
        session.feed(Token(number, piece.encode()))


async def read_all(session: Session) -> list[str]:
    cursor, seen = 0, []
    while True:
        if piece := session.take(cursor):
            seen.append(piece.text)
            cursor = piece.cursor
        elif session.end is not None:
            return seen
        else:
            await session.changed(cursor)


async def test_readers_at_different_paces_see_one_text() -> None:
    session, _ = make()
    early = asyncio.create_task(read_all(session))
    for piece in ("a", "b", "c"):
        feed_text(session, piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    session.feed(Finished("stop", 3, 3))
    assert await early == ["a", "b", "c"]
    assert await read_all(session) == ["abc"]  # a late reader gets it in one piece


async def test_a_stop_string_ends_the_session_and_its_source() -> None:
    session, cancelled = make(stop=("END",))
    feed_text(session, "one ", "EN", "D two", "never")
    assert session.text == "one "
    assert session.end == Finished("stop", 3, 3)
    assert cancelled == ["r"]


async def test_a_held_false_start_is_flushed_at_the_end() -> None:
    session, _ = make(stop=("END",))
    feed_text(session, "one E")
    session.feed(Finished("length", 3, 1))
    assert session.text == "one E"


async def test_failure_keeps_what_was_delivered() -> None:
    session, _ = make()
    feed_text(session, "half")
    session.feed(Failed(EngineFailed("broke")))
    assert session.text == "half"
    assert isinstance(await session.finished(), Failed)


async def test_changed_times_out_and_leaves_nothing_behind() -> None:
    session, _ = make()
    assert await session.changed(0, timeout=0.01) is False
    assert session._waiting == []
    feed_text(session, "x")
    assert await session.changed(0, timeout=0.01) is True


async def test_cancel_is_told_once_and_ends_the_session() -> None:
    session, cancelled = make()
    session.feed(Started(cached_tokens=2))
    session.cancel()
    session.cancel()
    assert cancelled == ["r"]
    assert session.end == Finished("cancelled", 3, 0)
    session.feed(Token(1, b"late"))
    assert session.text == ""
    assert session.cached_tokens == 2


async def test_a_cancelled_reader_leaves_no_waiter() -> None:
    session, _ = make()
    reader = asyncio.create_task(session.changed(0))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert session._waiting == []


class Shelf:
    """A recorder that commits when it is told to."""

    def __init__(self) -> None:
        self.records: list[tuple[int, list[Entry], End | None]] = []
        self._done: list[Callable[[Exception | None], None]] = []

    def record(
        self, id: str, first: int, entries: Sequence[Entry], end: End | None, done: Callable[[Exception | None], None]
    ) -> None:
        self.records.append((first, list(entries), end))
        self._done.append(done)

    def commit(self, error: Exception | None = None) -> None:
        for done in self._done:
            done(error)
        self._done.clear()


def durable(entries: Sequence[Entry] = ()) -> tuple[Session, Shelf]:
    shelf = Shelf()
    return Session(Request("r", (1,), 99), HandSource(), shelf, entries), shelf


async def test_nothing_is_readable_before_it_is_stored() -> None:
    session, shelf = durable()
    feed_text(session, "a", "b")
    assert session.take(0) is None
    shelf.commit()
    assert session.text == "ab"
    session.feed(Finished("stop", 1, 2))
    assert session.end is None, "the end is an entry too"
    shelf.commit()
    assert session.end == Finished("stop", 1, 2)
    assert [(first, len(entries)) for first, entries, _ in shelf.records] == [(0, 1), (1, 1), (2, 0)]


async def test_a_store_that_fails_does_not_stop_the_stream() -> None:
    session, shelf = durable()
    feed_text(session, "a", "b")
    shelf.commit(OSError("disk full"))
    assert session.text == "ab"
    feed_text(session, "c")
    assert [(first, len(entries)) for first, entries, _ in shelf.records][-1] == (0, 3), "all of it is given again"


async def test_an_end_that_could_not_be_stored_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RETRY_S", 0.01)
    session, shelf = durable()
    feed_text(session, "a")
    session.feed(Finished("stop", 1, 1))
    shelf.commit(OSError("disk full"))
    assert session.end == Finished("stop", 1, 1), "its reader has it whole"
    await asyncio.sleep(0.05)
    assert shelf.records[-1] == (0, [Entry("a", Token(0, b"a"))], Finished("stop", 1, 1))
    shelf.commit()
    count = len(shelf.records)
    await asyncio.sleep(0.05)
    assert len(shelf.records) == count


async def test_a_restored_session_goes_on_with_its_numbers_and_its_held_text() -> None:
    stored = [Entry("one ", Token(0, b"one ")), Entry("", Token(1, b"E"))]
    session = Session(Request("r", (1,), 99, stop=("END",)), HandSource(), shelf := Shelf(), stored)
    assert (session.count, session.completion_tokens, session.text) == (2, 2, "one ")
    feed_text(session, "lse")
    shelf.commit()
    assert session.text == "one Else"
    assert shelf.records == [(2, [Entry("Else", Token(0, b"lse"))], None)]


async def test_a_suspended_session_tells_its_readers_and_stays_unfinished_in_the_store() -> None:
    session, shelf = durable()
    feed_text(session, "a")
    shelf.commit()
    session.suspend(EngineFailed("restarting"))
    assert isinstance(await session.finished(), Failed)
    assert [end for _, _, end in shelf.records] == [None]


async def test_an_ended_session_is_only_read() -> None:
    session = Session.ended(Request("r", (1,), 9), [Entry("x", Token(1, b"x"))], Finished("stop", 1, 1))
    assert session.text == "x"
    assert await session.finished() == Finished("stop", 1, 1)
    session.cancel()
    lost = Session.ended(Request("r", (1,), 9), [], None)
    assert isinstance(lost.end, Failed)


async def test_the_source_is_held_only_while_all_readers_lag() -> None:
    source = HandSource()
    session = Session(Request("r", (1,), 99), source)
    session.lagging("slow", True)
    session.lagging("quick", False)
    session.lagging("quick", True)
    session.left("quick")
    session.lagging("slow", False)
    session.left("slow")
    assert source.held == [("r", True), ("r", False), ("r", True), ("r", False)]
    session.lagging("slow", True)
    session.left("slow")
    assert source.held[-1] == ("r", False), "without readers a resumable answer goes on"


async def test_who_answered_is_part_of_the_end() -> None:
    session, _ = make()
    session.feed(Started(3, "peer/a"))
    feed_text(session, "a")
    session.feed(Started(3, "local"))
    session.feed(Finished("stop", 3, 1))
    assert session.end == Finished("stop", 3, 1, ("peer/a", "local"))
    stopped, _ = make(stop=("X",))
    stopped.feed(Started(0, "peer/b"))
    feed_text(stopped, "aX")
    assert stopped.end == Finished("stop", 3, 1, ("peer/b",))
    alone, _ = make()
    alone.feed(Started(0))
    alone.feed(Finished("stop", 3, 0))
    assert alone.end == Finished("stop", 3, 0)
