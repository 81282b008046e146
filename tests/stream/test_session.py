"""One generation, many readers."""

import asyncio

from node.errors import EngineFailed
from node.generation import Failed, Finished, Request, Started, Token
from node.stream.session import Session


def make(**extra: object) -> tuple[Session, list[str]]:
    cancelled: list[str] = []
    request = Request(id="r", prompt=(1, 2, 3), max_tokens=99, **extra)  # type: ignore[arg-type]
    return Session(request, cancelled.append), cancelled


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
