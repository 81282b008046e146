"""One model takes another's place while requests run: beside it, or instead of it; and what fails changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from node import served as served_module
from node.admission.quota import Quotas
from node.errors import EngineFailed, NodeError, Unavailable
from node.fleet.pinned import Pinned
from node.generation import Finished, Model, Request, TokenSource
from node.served import Served
from node.serving import Serving
from node.settings import Settings
from node.stream.session import Session
from tests.conftest import settings


class Makes:
    """Makes echo models; `failing` of the next ones do not load."""

    def __init__(self) -> None:
        self.made: list[Serving] = []
        self.failing = 0

    def __call__(self, wanted: Settings, pinned: Pinned | None = None) -> Serving:
        serving = Serving(wanted, Quotas(), None, pinned=pinned)
        self.made.append(serving)
        if self.failing:
            self.failing -= 1
            serving.worker._open_engine = _breaks
        return serving


def _breaks() -> None:  # type: ignore[misc]
    raise EngineFailed("This one does not load.")


async def anything(model: Model, source: TokenSource) -> None:
    pass


async def nothing(model: Model, source: TokenSource) -> None:
    raise EngineFailed("It answers nonsense.")


@pytest.fixture
async def makes() -> Makes:
    return Makes()


@pytest.fixture
async def served(makes: Makes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(served_module, "LINGER_S", 0.02)
    monkeypatch.setattr(served_module, "_AGAIN_S", 0.02)
    served = Served(makes(settings(engine_kind="echo", engine_slots=4)), makes, lambda serving: serving.source)
    await served.start()
    yield served
    await served.stop()


def ask(served: Served, text: str, id: str) -> Session:
    model = served.current.model
    source = served.source_of(model)
    session = Session(Request(id, tuple(model.encode(text)), len(text)), source)
    source.submit(session.request, session.feed)
    return session


async def begun(session: Session) -> None:
    async with asyncio.timeout(30):
        while not session.count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


OTHER = {"engine_kind": "echo", "engine_slots": 7}


async def test_beside_running_streams_lose_nothing_and_new_ones_go_to_the_new_model(served: Served) -> None:
    first = served.current
    sessions = [ask(served, str(number) * 700, f"old-{number}") for number in range(8)]
    await begun(sessions[0])
    await served.exchange(settings(**OTHER), None, anything, beside=True, drain_s=1)
    assert served.current is not first
    assert served.current.model.info.slots == 7
    assert served.old == 1
    new = ask(served, "new", "new")
    assert isinstance(await new.finished(), Finished)
    assert any(session.end is None for session in sessions), "the old streams still run"
    for number, session in enumerate(sessions):
        assert isinstance(await session.finished(), Finished)
        assert session.text == str(number) * 700
    async with asyncio.timeout(30):
        while served.old:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(Unavailable, match="ask again"):
        served.source_of(first.model)
    with pytest.raises(Unavailable, match="ask again"):
        first.model.encode("x")


async def test_who_made_tokens_with_the_old_model_may_still_bring_them_to_it(served: Served) -> None:
    old = served.current.model
    await served.exchange(settings(**OTHER), None, anything, beside=True, drain_s=1)
    source = served.source_of(old)
    session = Session(Request("late", tuple(old.encode("late")), 4), source)
    source.submit(session.request, session.feed)
    assert isinstance(await session.finished(), Finished)


@pytest.mark.parametrize("beside", [True, False])
async def test_instead_and_beside_end_in_the_new_model(served: Served, beside: bool) -> None:
    await served.exchange(settings(**OTHER), None, anything, beside=beside, drain_s=30)
    assert served.current.ready
    assert served.current.model.info.slots == 7
    assert isinstance(await ask(served, "x", "x").finished(), Finished)


@pytest.mark.parametrize("beside", [True, False])
async def test_what_is_not_accepted_leaves_the_old_model(served: Served, makes: Makes, beside: bool) -> None:
    with pytest.raises(EngineFailed, match="nonsense"):
        await served.exchange(settings(**OTHER), None, nothing, beside=beside, drain_s=30)
    assert served.current.model.info.slots == 4
    assert isinstance(await ask(served, "x", "x").finished(), Finished)
    assert sum(serving.worker._thread is not None for serving in makes.made) == 1, "the others are gone"


@pytest.mark.parametrize("beside", [True, False])
async def test_what_does_not_load_leaves_the_old_model(served: Served, makes: Makes, beside: bool) -> None:
    makes.failing = 1
    with pytest.raises(EngineFailed, match="does not load"):
        await served.exchange(settings(**OTHER), None, anything, beside=beside, drain_s=30)
    assert isinstance(await ask(served, "x", "x").finished(), Finished)


async def test_an_old_model_that_does_not_come_back_at_once_is_tried_again(served: Served, makes: Makes) -> None:
    makes.failing = 3
    with pytest.raises(EngineFailed, match="does not load"):
        await served.exchange(settings(**OTHER), None, anything, beside=False, drain_s=30)
    assert len(makes.made) == 5
    assert isinstance(await ask(served, "x", "x").finished(), Finished)


async def test_instead_new_requests_wait_at_the_door_until_the_new_model_is_there(served: Served) -> None:
    running = ask(served, "x" * 500, "running")
    exchange = asyncio.create_task(served.exchange(settings(**OTHER), None, anything, beside=False, drain_s=60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waits = asyncio.create_task(served.settled())
    await asyncio.sleep(0.01)
    assert not waits.done()
    await exchange
    await waits
    assert isinstance(running.end, Finished)
    assert running.text == "x" * 500
    assert isinstance(await ask(served, "x", "x").finished(), Finished)


async def test_streams_that_do_not_end_in_time_are_not_cut(served: Served) -> None:
    running = ask(served, "x" * 3000, "running")
    with pytest.raises(Unavailable, match="still run"):
        await served.exchange(settings(**OTHER), None, anything, beside=False, drain_s=0.05)
    await served.settled()
    assert running.end is None
    assert served.current.model.info.slots == 4
    running.cancel()
    await running.finished()


async def test_nobody_waits_at_the_door_for_ever(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "PATIENCE_S", 0.01)
    served._open.clear()
    with pytest.raises(Unavailable, match="come back"):
        await served.settled()
    served._open.set()


async def test_stages_stand_before_every_model(makes: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "LINGER_S", 0.02)
    fronts: list[Serving] = []

    def front(serving: Serving) -> TokenSource:
        fronts.append(serving)
        return serving.source

    served = Served(makes(settings(engine_kind="echo")), makes, front)
    await served.start()
    await served.exchange(settings(**OTHER), None, anything, beside=True, drain_s=1)
    assert fronts == [makes.made[0], makes.made[1]]
    await served.stop()


async def test_exchanges_come_one_after_the_other(served: Served) -> None:
    wanted = [settings(engine_kind="echo", engine_slots=slots) for slots in (1, 2, 3)]
    outcomes = await asyncio.gather(
        *(served.exchange(one, None, anything, beside=True, drain_s=1) for one in wanted), return_exceptions=True
    )
    assert not [outcome for outcome in outcomes if isinstance(outcome, NodeError)]
    assert served.current.model.info.slots == 3
