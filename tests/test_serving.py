"""One loaded model by itself, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from node.admission.quota import Quotas
from node.errors import EngineFailed, Unavailable
from node.generation import Finished, Request
from node.machine.memory import memory
from node.serving import Serving
from node.stream.session import Session
from tests.conftest import settings

Load = Callable[..., Awaitable[Serving]]


@pytest.fixture
async def load() -> AsyncIterator[Load]:
    """Load models; all are stopped after the test."""
    loaded: list[Serving] = []

    async def one(**flags: object) -> Serving:
        serving = Serving(settings(engine_kind="echo", **flags), Quotas(), None)
        await serving.load()
        loaded.append(serving)
        return serving

    yield one
    await asyncio.gather(*(serving.stop() for serving in loaded))


def asked(serving: Serving, text: str, id: str = "one") -> Session:
    request = Request(id, tuple(serving.model.encode(text)), len(text))
    session = Session(request, serving.source)
    serving.source.submit(request, session.feed)
    return session


async def test_it_is_ready_once_it_decoded_a_token(load: Load) -> None:
    serving = await load(sampling_temperature=0.25, prewarm_min_sessions=1)
    assert not serving.ready
    nodes = serving.keeper.status()["history"]["nodes"]
    await serving.decode_one_token()
    assert serving.ready
    assert serving.keeper.status()["history"]["nodes"] == nodes, "nobody asked it, so it is no prompt to keep warm"
    assert serving.sampling.temperature == 0.25
    assert serving.status()["model"]["engine"] == "echo"
    assert serving.load_now(5).memory_free == 5
    serving.steer(memory())


async def test_a_broken_engine_is_not_ready(load: Load) -> None:
    serving = await load()
    await serving.worker.on_engine(lambda engine: setattr(engine, "step", lambda: 1 / 0))
    with pytest.raises(EngineFailed):
        await serving.decode_one_token()
    assert not serving.ready


async def test_two_models_at_once_do_not_mix(load: Load) -> None:
    one, other = await load(), await load(engine_slots=1)
    answers = [asked(one, "first " * 20), asked(other, "second " * 20)]
    for session, text in zip(answers, ("first " * 20, "second " * 20), strict=True):
        assert isinstance(await session.finished(), Finished)
        assert session.text == text


async def test_draining_lets_run_and_wait_finish_and_refuses_new_ones(load: Load) -> None:
    serving = await load(engine_slots=1)
    sessions = [asked(serving, "x" * 300, "runs"), asked(serving, "y" * 30, "waits")]
    drained = asyncio.create_task(serving.drain(60))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        asked(serving, "late", "late")
    assert await drained
    assert [session.text for session in sessions] == ["x" * 300, "y" * 30]


async def test_draining_ends_with_its_time(load: Load) -> None:
    serving = await load()
    session = asked(serving, "x" * 5000)
    assert not await serving.drain(0.01)
    session.cancel()


async def test_threads_of_an_engine_that_has_none_cannot_be_limited(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    await (await load()).limit_threads(1)
    assert "cannot be limited" in caplog.text


async def test_states_are_kept_in_their_own_folder(load: Load, tmp_path: Path) -> None:
    serving = await load(prewarm_folder=tmp_path / "states")
    await serving.keep()
    assert (tmp_path / "states").is_dir()
    assert serving.status()["prewarm"]["usable"]
