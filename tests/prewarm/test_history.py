"""The shell: what counts, what is stored when, what a restart keeps, what forgetting leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from node.generation import Caller, Request
from node.prewarm.history import SAVE_NEW_AFTER_S, History
from node.settings import Prewarm
from node.store.db import Database
from node.store.prefixes import PrefixStore


class Clock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "node.db")
    await opened.open()
    yield opened
    await opened.close()


def history(database: Database | None = None, clock: Clock | None = None, **settings: object) -> History:
    store = PrefixStore(database, "model") if database else None
    return History(Prewarm(**settings), store, clock or Clock())  # type: ignore[arg-type]


def asked(prompt: Sequence[int], session: str = "", tenant: str = "", **more: object) -> Request:
    return Request("r", tuple(prompt), 9, caller=Caller(tenant=tenant, session=session), **more)  # type: ignore[arg-type]


def texts(of: History) -> list[list[int]]:
    return sorted(of.tokens(candidate.id) for candidate in of.candidates())


def share(of: History, prompt: Sequence[int], tenant: str = "") -> None:
    """Three sessions ask it, each with words of its own after it."""
    for session in ("x", "y", "z"):
        of.note(asked([*prompt, 1000 + ord(session)], session, tenant))


def test_what_three_sessions_begin_with_becomes_a_candidate() -> None:
    it = history()
    it.note(asked([1, 2, 3, 4], "x"))
    it.note(asked([1, 2, 3, 5], "y"))
    assert it.candidates() == []
    it.note(asked([1, 2, 3, 6], "z"))
    assert texts(it) == [[1, 2, 3]]


def test_a_candidate_that_is_gone_has_no_tokens() -> None:
    clock = Clock()
    it = history(clock=clock, max_age_s=7200.0)
    share(it, [1, 2, 3])
    (found,) = it.candidates()
    clock.now += 8000
    it.note(asked([9], "x"))
    for id in (found.id, 12345):
        with pytest.raises(KeyError):
            it.tokens(id)


def test_what_is_on_the_way_to_a_held_end_has_tokens_too() -> None:
    it = history()
    it.note(asked([1, 2, 3], "x"))
    end = it.note(asked([1, 2, 3, 4], "x"))
    assert end is not None
    assert [it.tokens(c.id) for c in it.candidates(held=[end])] == [[1, 2, 3], [1, 2, 3, 4]]


def test_the_same_session_of_another_user_is_another_one() -> None:
    it = history(min_sessions=2)
    for user in ("a", "b"):
        it.note(Request("r", (1, 2, 3), 9, caller=Caller("", user, "1")))
    assert texts(it) == [[1, 2, 3]]


@pytest.mark.parametrize("more", [{"kind": "embed"}, {"continued": (5,)}])
def test_what_is_no_new_prompt_does_not_count(more: dict[str, object]) -> None:
    it = history(min_sessions=1)
    assert it.note(asked([1, 2], "x", **more)) is None
    assert it.figures.nodes == 0


def test_ends_may_be_held() -> None:
    it = history()
    end = it.note(asked([1, 2, 3], "x"))
    assert end is not None
    (found,) = it.candidates(held=[end])
    assert (found.id, found.kind, found.tokens) == (end, "recent", 3)
    assert it.tokens(end) == [1, 2, 3]


@pytest.mark.parametrize(("shared", "found"), [(False, []), (True, [[1, 2]])])
def test_tenants_share_only_where_the_setting_says_so(shared: bool, found: list[list[int]]) -> None:
    it = history(min_sessions=2, share_between_tenants=shared)
    it.note(asked([1, 2], "x", tenant="a"))
    it.note(asked([1, 2], "y", tenant="b"))
    assert texts(it) == found


def test_templates_are_candidates_at_once() -> None:
    it = history()
    it.pin([7, 8, 9])
    assert texts(it) == [[7, 8, 9]]
    assert it.match("anybody", [7, 8, 1]).offered == 2


def test_old_prompts_expire_while_it_runs() -> None:
    clock = Clock()
    it = history(clock=clock, max_age_s=7200.0)
    share(it, [1, 2, 3])
    clock.now += 8000
    it.note(asked([9], "x"))
    assert it.candidates() == []
    assert it.figures.nodes == 1


async def test_a_restart_keeps_what_is_shared_and_nothing_else(database: Database) -> None:
    clock = Clock()
    first = history(database, clock)
    await first.load()
    share(first, [1, 2, 3], "a")
    share(first, [1, 2, 7], "a")
    first.note(asked([9, 9, 9, 9], "x"))
    before = {tuple(first.tokens(c.id)): c for c in first.candidates()}
    await first.close()
    second = history(database, clock)
    await second.load()
    assert {tuple(second.tokens(c.id)): c for c in second.candidates()} == before
    assert second.match("", [9, 9, 9, 9]).tokens == 0
    assert second.match("a", [1, 2, 3, 5]).offered == 3


async def test_changes_after_a_restart_are_stored_too(database: Database) -> None:
    for turn in range(3):
        it = history(database)
        await it.load()
        assert len(it.candidates()) == (0 if turn == 0 else turn)
        share(it, [turn + 1] * 5)
        await it.close()


async def test_it_is_stored_while_the_node_runs(database: Database) -> None:
    """What a killed node leaves: it is never closed."""
    it = History(Prewarm(), PrefixStore(database, "model"), Clock(), save_after_s=0.0)
    await it.load()
    share(it, [1, 2, 3])
    while it._timer is not None or it._task is None or not it._task.done():  # noqa: ASYNC110  # a timer has no event
        await asyncio.sleep(0.001)
    again = history(database)
    await again.load()
    assert texts(again) == [[1, 2, 3]]


async def test_what_has_just_become_shared_is_written_soon_and_counts_take_their_time(database: Database) -> None:
    it = history(database)
    await it.load()

    def due_in() -> float:
        assert it._timer is not None
        return it._timer.when() - asyncio.get_running_loop().time()

    share(it, [1, 2, 3])
    assert it.has_new
    assert due_in() <= SAVE_NEW_AFTER_S
    await it.close()
    assert not it.has_new
    it.note(asked([1, 2, 3, 4], "a session more"))
    assert due_in() > SAVE_NEW_AFTER_S + 1, "only counts have changed"
    share(it, [7, 8, 9])
    assert due_in() <= SAVE_NEW_AFTER_S
    await it.close()
    again = history(database)
    await again.load()
    assert not again.has_new
    again.note(asked([7, 8, 9], "x"))
    assert not again.has_new
    await again.forget()
    share(again, [7, 8, 9])
    assert again.has_new
    await again.close()


async def test_who_let_go_writes_no_more(database: Database) -> None:
    it = history(database)
    await it.load()
    share(it, [1, 2, 3])
    await it.let_go()
    share(it, [7, 8, 9])
    await it.close()
    again = history(database)
    await again.load()
    assert texts(again) == [[1, 2, 3]]


async def test_a_split_is_stored(database: Database) -> None:
    it = history(database)
    await it.load()
    share(it, [1, 2, 3, 4])
    await it.close()
    share(it, [1, 2])
    await it.close()
    again = history(database)
    await again.load()
    assert texts(again) == [[1, 2], [1, 2, 3, 4]]


async def test_templates_survive_loading_and_forgetting(database: Database) -> None:
    it = history(database)
    it.pin([7, 8])
    await it.load()
    assert texts(it) == [[7, 8]]
    share(it, [1, 2])
    assert await it.forget() == 1
    assert texts(it) == [[7, 8]]


async def test_forgetting_leaves_nothing_for_the_next_start(database: Database) -> None:
    it = history(database)
    await it.load()
    share(it, [1, 2, 3])
    await it.close()
    share(it, [4, 5, 6])
    assert await it.forget() == 2
    await it.close()
    assert it.match("", [1, 2, 3]).tokens == 0
    again = history(database)
    await again.load()
    assert again.candidates() == []


async def test_off_notes_nothing_and_erases_what_was_kept(database: Database) -> None:
    it = history(database)
    await it.load()
    share(it, [1, 2, 3])
    await it.close()
    off = history(database, enabled=False)
    await off.load()
    assert off.note(asked([1, 2], "x")) is None
    await off.close()
    again = history(database)
    await again.load()
    assert again.candidates() == []


async def test_a_stricter_quorum_keeps_nothing_of_a_laxer_one(database: Database) -> None:
    lax = history(database, min_sessions=1)
    await lax.load()
    lax.note(asked([1, 2, 3], "x"))
    await lax.close()
    strict = history(database)
    await strict.load()
    assert strict.candidates() == []


async def test_what_could_not_be_stored_is_stored_later(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    it = history(database)
    await it.load()
    share(it, [1, 2, 3])
    await database.run(lambda db: db.execute("ALTER TABLE prefixes RENAME TO away").rowcount)
    await it.close()
    assert "could not be stored" in caplog.text
    await database.run(lambda db: db.execute("ALTER TABLE away RENAME TO prefixes").rowcount)
    await it.close()
    again = history(database)
    await again.load()
    assert texts(again) == [[1, 2, 3]]


async def test_rows_that_fit_nowhere_are_counted_and_left_out(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    it = history(database)
    await it.load()
    share(it, [1, 2, 3])
    share(it, [1, 2, 4])
    await it.close()
    await database.run(lambda db: db.execute("UPDATE prefixes SET parent = 999 WHERE parent != 0").rowcount)
    again = history(database)
    with caplog.at_level(logging.INFO):
        await again.load()
    assert texts(again) == [[1, 2]]
    assert [record.unreadable for record in caplog.records if "loaded" in record.message] == [2]


async def test_nothing_of_a_prompt_is_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        it = history(database)
        await it.load()
        share(it, [123_456, 234_567], tenant="acme")
        await it.close()
        await it.forget()
    for record in caplog.records:
        assert "123456" not in str(record.__dict__)
