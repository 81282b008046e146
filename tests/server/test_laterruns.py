"""Deferred requests run: few at a time, in order, again after a death, and never answered twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.errors import EngineFailed, Overloaded
from node.server import laterruns
from tests.server.test_deferral import BUSY, answer_of
from tests.support.deferring import WAITS, deferring
from tests.support.hubs import until
from tests.support.service import scripted


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells it when a node is ready, or when a disk has room again."""
    monkeypatch.setattr(laterruns, "IDLE_S", 0.05)


async def test_another_life_goes_on_with_what_waits(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        locations = [(await node.ask())[2]["Location"] for _ in range(5)]
    source.refusal = None
    async with deferring(service, tmp_path) as node:
        for location in locations:
            assert (await answer_of(node, location))[0] == 200
    async with deferring(service, tmp_path) as node:  # an answer outlives the process, too
        assert (await node.send("GET", locations[0]))[0] == 200
    assert len(source.submitted) == 5


async def test_what_was_running_when_it_stopped_runs_again(tmp_path: Path) -> None:
    never = asyncio.Event()
    service, source = scripted("a", never)
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        location = (await node.ask())[2]["Location"]
        source.refusal = None
        await until(lambda: bool(source.submitted))
    assert source.cancelled
    source.script = ("whole",)
    async with deferring(service, tmp_path) as node:
        status, answer, _ = await answer_of(node, location)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "whole")


async def test_a_few_at_a_time_oldest_first(tmp_path: Path) -> None:
    release = asyncio.Event()
    service, source = scripted("a", release, slots=8)
    source.refusal = BUSY
    async with deferring(service, tmp_path, outbox_later_at_a_time=3) as node:
        for number in range(6):
            await node.ask(max_tokens=100 + number)
        source.refusal = None
        await until(lambda: len(source.submitted) >= 3)
        await asyncio.sleep(0.1)
        assert len(source.submitted) <= 3
        release.set()
        await until(lambda: len(source.submitted) == 6)
    asked = [request.max_tokens for request in source.submitted]
    # Which of those that run at the same time reaches the engine first is up to its threads.
    assert [sorted(asked[:3]), sorted(asked[3:])] == [[100, 101, 102], [103, 104, 105]]


async def test_a_node_that_is_not_ready_runs_nothing(tmp_path: Path) -> None:
    service, source = scripted()
    service.ready = False
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        location = (await node.ask())[2]["Location"]
        source.refusal = None
        await asyncio.sleep(0.1)
        assert not source.submitted
        service.ready = True
        assert (await answer_of(node, location))[0] == 200


async def test_what_breaks_the_engine_is_tried_three_times(tmp_path: Path) -> None:
    service, source = scripted(EngineFailed("it broke"))
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        location = (await node.ask())[2]["Location"]
        source.refusal = None
        status, answer, _ = await answer_of(node, location)
        assert (status, answer["error"]["code"]) == (500, "engine_failed")
    assert len(source.submitted) == 3


async def test_an_answer_that_cannot_be_kept_is_not_made_again_at_once(tmp_path: Path) -> None:
    """As on a full disk: the engine would make it over and over."""
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        location = (await node.ask())[2]["Location"]
        disk = node.post._databases[0]
        await disk.run(
            lambda db: db.execute(
                "CREATE TRIGGER full BEFORE UPDATE OF answer ON later BEGIN SELECT RAISE(FAIL, 'disk full'); END"
            )
        )
        source.refusal = None
        await until(lambda: bool(source.submitted))
        await asyncio.sleep(0.4)
        assert len(source.submitted) == 1
        await disk.run(lambda db: db.execute("DROP TRIGGER full"))
        assert (await answer_of(node, location))[0] == 200
    assert len(source.submitted) == 2


async def test_what_its_caller_said_of_the_cloud_still_counts(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path, cloud_url="http://127.0.0.1:9/v1", cloud_policy="always") as node:
        said = ("never", "allow", None)
        for word in said:
            await node.ask({**WAITS, **({"Outpost-Cloud": word} if word else {})})
        source.refusal = None
        await until(lambda: len(source.submitted) == 3)
    assert sorted(request.asked.cloud for request in source.submitted if request.asked) == ["", "allow", "never"]


async def test_a_request_that_is_wrong_by_now_gets_that_as_its_answer(tmp_path: Path) -> None:
    """The node comes back with a smaller model, and what it was asked does not fit any more."""
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        location = (await node.ask())[2]["Location"]
    smaller, _ = scripted(context=8)
    async with deferring(smaller, tmp_path) as node:
        status, answer, _ = await answer_of(node, location)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_an_overloaded_node_is_left_alone_for_longer_and_longer(tmp_path: Path) -> None:
    service, source = scripted()
    attempts = 0

    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        locations = [(await node.ask())[2]["Location"] for _ in range(20)]

        original = source.submit

        def submit(request: object, sink: object) -> None:
            nonlocal attempts
            attempts += 1
            original(request, sink)  # type: ignore[arg-type]

        source.submit = submit  # type: ignore[method-assign]  # a scripted source, which is a test's own
        source.refusal = Overloaded("busy")
        await asyncio.sleep(1.0)
        assert attempts <= 40  # with pauses of 50 to 100 ms; without them it would be thousands
        source.refusal = None
        for location in locations:
            assert (await answer_of(node, location))[0] == 200


async def test_the_callback_goes_out_with_the_answer(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-the-caller")  # a test may
    service, source = scripted()
    source.refusal = BUSY
    given = {"outbox_callbacks": "http://127.0.0.1:9/", "outbox_callback_secret_file": str(secret)}
    async with deferring(service, tmp_path, **given) as node:
        location = (await node.ask({**WAITS, "Outpost-Callback": "http://127.0.0.1:9/hook"}))[2]["Location"]
        source.refusal = None
        assert (await answer_of(node, location))[0] == 200
        assert node.post.outbox is not None
        await until(lambda: node.post.status()["callbacks"]["failures"] >= 1)  # nobody listens there
        assert (await node.post.outbox.look())["waiting"] == 1
