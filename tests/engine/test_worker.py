"""The worker's thread: one crossing a step, cancels, failures, stopping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from node.engine.echo import EchoEngine
from node.engine.worker import Worker
from node.errors import EngineFailed, InvalidRequest, ModelFileError, Unavailable
from node.generation import Event, Failed, Finished, Request
from node.settings import Engine as EngineSettings
from node.stream.session import Session


class Slowed(EchoEngine):
    """The echo engine, with steps that a test can hold up or break."""

    def __init__(self) -> None:
        super().__init__(EngineSettings(kind="echo"), "echo")
        self.go = threading.Event()
        self.go.set()
        self.broken_steps = 0
        self.broken_holds = False
        self.threads: set[int] = set()
        self.closed = False

    def add(self, request: Request) -> None:
        if request.id == "bad":
            raise InvalidRequest("not this one")
        super().add(request)

    def hold(self, request_id: str, held: bool) -> None:
        if self.broken_holds:
            raise RuntimeError("no engine should do this")
        super().hold(request_id, held)

    def step(self) -> list[tuple[str, Event]]:
        self.threads.add(threading.get_ident())
        self.go.wait(5)
        if self.broken_steps:
            self.broken_steps -= 1
            raise RuntimeError("llama.cpp fell over")
        return super().step()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
async def parts() -> AsyncIterator[tuple[Worker, Slowed]]:
    engine = Slowed()
    worker = Worker(lambda: engine)
    await worker.start()
    yield worker, engine
    engine.go.set()
    await worker.stop()
    assert engine.closed


def submit(worker: Worker, id: str, text: str = "hello") -> Session:
    request = Request(id, tuple(text.encode()), 100_000)
    session = Session(request, worker)
    worker.submit(request, session.feed)
    return session


async def test_requests_run_in_the_engines_thread_and_come_back(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    sessions = [submit(worker, str(n), f"text {n}") for n in range(5)]
    for number, session in enumerate(sessions):
        await session.finished()
        assert session.text == f"text {number}"
    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads
    await until(lambda: worker.load.requests == 0)


async def test_one_crossing_a_step(parts: tuple[Worker, Slowed], monkeypatch: pytest.MonkeyPatch) -> None:
    worker, engine = parts
    crossings = []
    loop = asyncio.get_running_loop()
    cross = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (crossings.append(args[0]), cross(*args))[1])
    engine.go.clear()
    sessions = [submit(worker, str(n), "abcdefgh") for n in range(6)]
    engine.go.set()
    for session in sessions:
        await session.finished()
    delivered = [callback for callback in crossings if getattr(callback, "__name__", "") == "_deliver"]
    assert len(delivered) <= 2 + 8 + 2  # not 6 x 8


async def test_a_loop_that_lags_is_woken_once(parts: tuple[Worker, Slowed], monkeypatch: pytest.MonkeyPatch) -> None:
    worker, engine = parts
    crossings = []
    loop = asyncio.get_running_loop()
    cross = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (crossings.append(args[0]), cross(*args))[1])
    session = submit(worker, "a", "x" * 3000)
    deadline = time.monotonic() + 5
    while (worker._commands or engine.load.requests or not crossings) and time.monotonic() < deadline:
        time.sleep(0.001)  # noqa: ASYNC251  # the loop is blocked on purpose
    assert len(crossings) == 1
    await session.finished()
    assert len(session.text) == 3000


async def test_cancel_frees_the_request_within_one_step(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    session = submit(worker, "a", "x" * 90_000)
    await session.changed(0)
    ends: list[Event] = []
    worker._sinks["a"] = ends.append
    worker.cancel("a")
    await until(lambda: bool(ends) and isinstance(ends[-1], Finished))
    assert isinstance(ends[-1], Finished)
    assert ends[-1].reason == "cancelled"
    assert engine.load.requests == 0


async def test_a_refused_request_harms_nobody(parts: tuple[Worker, Slowed]) -> None:
    worker, _ = parts
    good, bad = submit(worker, "good"), submit(worker, "bad")
    end = await bad.finished()
    assert isinstance(end, Failed)
    assert isinstance(end.error, InvalidRequest)
    await good.finished()
    assert good.text == "hello"


async def test_one_that_may_not_go_on_fails_alone(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    engine.go.clear()
    parked, *running = [submit(worker, str(n), "x" * 9000) for n in range(engine.model.info.slots)]
    worker.hold("0", True)
    running.append(submit(worker, "more", "x" * 9000))
    worker.hold("0", False)
    engine.go.set()
    end = await parked.finished()
    assert isinstance(end, Failed)
    assert "slots are taken" in end.error.message
    assert all(session.end is None for session in running)
    for number in range(1, engine.model.info.slots):
        worker.cancel(str(number))
    worker.cancel("more")
    await until(lambda: engine.load.requests == 0)


async def test_a_broken_step_fails_what_ran_and_the_next_is_fine(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    engine.broken_steps = 1
    end = await submit(worker, "a").finished()
    assert isinstance(end, Failed)
    assert isinstance(end.error, EngineFailed)
    assert "llama.cpp" not in end.error.message, "details are for the log"
    after = submit(worker, "b")
    await after.finished()
    assert after.text == "hello"


async def test_an_engine_that_stays_broken_is_given_up(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    engine.broken_steps = 3
    for turn in range(3):
        assert isinstance(await submit(worker, str(turn)).finished(), Failed)
    await until(lambda: worker.broken)
    with pytest.raises(Unavailable):
        submit(worker, "late")


async def test_stop_tells_those_who_wait() -> None:
    engine = Slowed()
    worker = Worker(lambda: engine)
    await worker.start()
    engine.go.clear()
    session = submit(worker, "a")
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.01)
    engine.go.set()
    await stopping
    end = await session.finished()
    assert isinstance(end, Failed | Finished)
    with pytest.raises(Unavailable):
        submit(worker, "b")


async def test_an_action_runs_on_the_engines_thread_and_its_result_comes_back(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    await submit(worker, "a").finished()
    seen = await worker.on_engine(lambda one: (one, threading.get_ident()))
    assert seen[0] is engine
    assert {seen[1]} == engine.threads


async def test_actions_keep_their_order_with_requests(parts: tuple[Worker, Slowed]) -> None:
    worker, _ = parts
    before = worker.on_engine(lambda engine: engine.load.requests)
    session = submit(worker, "a")
    after = worker.on_engine(lambda engine: engine.load.requests)
    assert (await before, await after) == (0, 1)
    await session.finished()


async def test_what_an_action_raises_goes_to_whoever_asked_and_harms_nobody(parts: tuple[Worker, Slowed]) -> None:
    worker, _ = parts

    def fall(engine: object) -> None:
        raise ZeroDivisionError

    session = submit(worker, "a")
    with pytest.raises(ZeroDivisionError):
        await worker.on_engine(fall)
    await session.finished()
    assert session.text == "hello"


async def test_an_action_that_nobody_waits_for_any_more_does_not_run(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    engine.go.clear()
    session = submit(worker, "a")  # holds the engine up in its step
    await until(lambda: not worker._commands)
    ran: list[int] = []
    outcome = asyncio.ensure_future(worker.on_engine(lambda _: ran.append(1)))
    outcome.cancel()
    engine.go.set()
    await session.finished()
    await worker.on_engine(lambda _: None)
    assert not ran


async def test_an_action_behind_a_command_that_broke_is_told(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    engine.go.clear()
    session = submit(worker, "a")
    await until(lambda: not worker._commands)
    engine.broken_holds = True
    worker.hold("a", True)
    outcome = worker.on_engine(lambda _: None)
    engine.go.set()
    with pytest.raises(EngineFailed):
        await outcome
    assert isinstance(await session.finished(), Failed)


async def test_actions_that_a_failing_step_or_the_stop_swallowed_are_told(parts: tuple[Worker, Slowed]) -> None:
    worker, engine = parts
    engine.broken_steps = 1
    outcome = worker.on_engine(lambda _: "ran before the step broke")
    assert await outcome == "ran before the step broke"
    engine.go.clear()
    submit(worker, "a")
    await until(lambda: not worker._commands)
    late = worker.on_engine(lambda _: None)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.01)
    engine.go.set()
    await stopping
    with pytest.raises(Unavailable):
        await late
    with pytest.raises(Unavailable):
        worker.on_engine(lambda _: None)


async def test_a_model_that_cannot_load_raises_from_start() -> None:
    def broken() -> EchoEngine:
        raise ModelFileError("damaged")

    worker = Worker(broken)
    with pytest.raises(ModelFileError, match="damaged"):
        await worker.start()
    await worker.stop()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2500):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")
