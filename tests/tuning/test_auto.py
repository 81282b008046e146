"""A node that tunes itself: only when nobody wants anything, and gone when somebody does."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from node.generation import Request
from node.layers import load
from node.settings import Settings
from node.tuning import auto, tuned
from node.tuning.auto import AutoTune, Bell, command, wanted
from node.tuning.lab import workshop
from tests.support.cable import until
from tests.support.sources import HandSource
from tests.tuning.test_tuned import put

SLEEPS = (sys.executable, "-c", "import sys; sys.stdin.read()")
RESULT = '{"winner": "Q8_0", "why": "", "gains": {"decode": 1.2}}'
WORKS = (sys.executable, "-c", f"print('{RESULT}')")
FAILS = (sys.executable, "-c", "import sys; sys.exit('there is no space')")


class Node:
    """What the runtime gives: whether it is busy."""

    def __init__(self, busy: Callable[[], bool] = lambda: False) -> None:
        self.busy = busy


@pytest.fixture
async def start(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., AutoTune]]:
    """Start auto-tunes with a short patience; all are stopped after the test."""
    monkeypatch.setattr(auto, "_LOOK_S", 0.01)
    made: list[AutoTune] = []

    def started(argv: tuple[str, ...], node: Node | None = None, idle_s: float = 0.02) -> AutoTune:
        own = node or Node()
        one = AutoTune(argv, idle_s, own.busy)
        one.start()
        made.append(one)
        return one

    yield started
    await asyncio.gather(*(one.stop() for one in made))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_an_idle_node_is_tuned_once(start: Callable[..., AutoTune], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = start(WORKS)
    await until(lambda: one.state == "done")
    await asyncio.sleep(0.1)
    assert one.state == "done"
    assert one._task is not None
    assert one._task.done(), "and never again in this life"
    last = caplog.records[-1]
    assert (last.getMessage(), last.__dict__["winner"]) == ("tuned; used from the next start on", "Q8_0")


async def test_a_busy_node_is_not(start: Callable[..., AutoTune]) -> None:
    working = True
    one = start(WORKS, Node(lambda: working))
    await asyncio.sleep(0.15)
    assert one.state == "waiting"
    working = False
    await until(lambda: one.state == "done")


async def test_a_request_ends_it_at_once_and_it_is_tried_again_later(start: Callable[..., AutoTune]) -> None:
    one = start(SLEEPS)
    await until(lambda: one._process is not None)
    assert one._process is not None
    pid = one._process.pid
    workshop().mkdir()
    (workshop() / "Q8_0.gguf.part").write_bytes(b"half")
    began = time.monotonic()
    one.request()
    await until(lambda: not alive(pid))
    assert time.monotonic() - began < 1
    await until(lambda: one.state == "interrupted")
    assert not workshop().exists()
    assert one._patience.wait_s == 0.04
    await until(lambda: one._process is not None and one._process.pid != pid)


async def test_requests_that_come_while_nothing_runs_only_start_the_count_anew(start: Callable[..., AutoTune]) -> None:
    one = start(WORKS, idle_s=0.2)
    for _ in range(10):
        one.request()
        await asyncio.sleep(0.05)
        assert one.state == "waiting"
    await until(lambda: one.state == "done")


async def test_a_request_that_came_while_the_process_was_made_ends_it_too(start: Callable[..., AutoTune]) -> None:
    made: list[AutoTune] = []
    node = Node(lambda: bool(made and made[0].state == "running"))  # idle until it was decided, busy right after
    made.append(start(SLEEPS, node))
    await until(lambda: made[0].state == "interrupted")


async def test_a_failure_is_told_and_not_repeated(
    start: Callable[..., AutoTune], caplog: pytest.LogCaptureFixture
) -> None:
    one = start(FAILS)
    await until(lambda: one.state == "failed")
    assert caplog.records[-1].__dict__["said"] == "there is no space"
    assert one._task is not None
    await until(one._task.done)


async def test_on_battery_it_waits(start: Callable[..., AutoTune], monkeypatch: pytest.MonkeyPatch) -> None:
    from node.machine.supply import Supply

    power = Supply(on_battery=True)
    monkeypatch.setattr(auto, "supply", lambda: power)
    one = start(WORKS)
    await asyncio.sleep(0.15)
    assert one.state == "waiting"
    power = Supply(on_battery=False)
    await until(lambda: one.state == "done")


async def test_stopping_the_node_stops_it(start: Callable[..., AutoTune]) -> None:
    one = start(SLEEPS)
    await until(lambda: one._process is not None)
    assert one._process is not None
    workshop().mkdir()
    await one.stop()
    assert not alive(one._process.pid)
    assert not workshop().exists()


async def test_stopping_before_anything_happened(start: Callable[..., AutoTune]) -> None:
    one = start(WORKS, idle_s=1000)
    await one.stop()
    assert one.state == "waiting"
    await AutoTune(WORKS, 1, lambda: False).stop()


def test_the_bell_rings_before_the_request_goes_on() -> None:
    rung: list[str] = []
    source = HandSource()
    bell = Bell(source, lambda: rung.append("ring"))
    request = Request("r", (1,), 1)
    bell.submit(request, lambda event: None)
    bell.hold("r", True)
    bell.cancel("r")
    assert rung == ["ring"]
    assert (list(source.sinks), source.held, source.cancelled) == (["r"], [("r", True)], ["r"])


def test_the_child_gets_the_node_s_own_flags() -> None:
    words = command(["--set", "model.name=x.gguf"])
    assert words[0] == sys.executable
    assert words[words.index("tune") :] == (
        *("tune", "--apply", "--json", "--background"),
        *("--set", "model.name=x.gguf"),
    )


def settings(model: Path, **flags: object) -> Settings:
    named = {key.replace("_", ".", 1): str(value) for key, value in flags.items()}
    return load(environment={}, flags={"model.name": str(model), **named})


@pytest.mark.parametrize(
    "flags",
    [
        {"server_port": 0},
        {"tune_auto": "false"},
        {"tune_use": "false"},
        {"engine_kind": "echo"},
        {"model_variant": "/by/hand.gguf"},
    ],
)
def test_who_never_tunes_itself(home: Path, tiny: Path, flags: dict[str, object]) -> None:
    assert wanted(settings(tiny))
    assert not wanted(settings(tiny, **flags))


def test_what_was_done_is_not_done_again_until_something_changes(home: Path, tiny: Path) -> None:
    found = put(home, tiny, weights=None, gains=None, engine={})
    assert not wanted(settings(tiny)), "also where nothing was found"
    tuned.write(msgspec.structs.replace(found, machine=msgspec.structs.replace(found.machine, cores=99)))
    assert wanted(settings(tiny))
    tuned.write(msgspec.structs.replace(found, model="another"))
    assert wanted(settings(tiny))
    tuned.clear()
    assert wanted(settings(tiny))


def test_a_model_that_is_missing_is_nobody_s_to_tune(home: Path, tiny: Path, tmp_path: Path) -> None:
    put(home, tiny, model=str(tmp_path / "gone.gguf"))
    assert not wanted(settings(tmp_path / "gone.gguf"))
