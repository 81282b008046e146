"""The real model takes another one's place under eight streams, and an operator asks for it over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from node import served
from node.client import Client, Done, TextDelta
from node.fleet.apply import Damaged, Terms
from node.fleet.boot import over
from node.fleet.choice import choose
from node.fleet.profile import parse
from node.models import catalog
from node.runtime import Node
from tests.conftest import DEFAULT_MODEL, settings
from tests.support import tiny_model

Start = Callable[..., Awaitable[Node]]
SMALL = {"engine_context": 512, "engine_threads": 1, "prewarm_enabled": "false", "engine_drafts": "off"}
PATIENT = {"load_gap_ms": 60_000, "load_wait_ms": 600_000}  # however busy this machine is, nobody waits for a slot


async def stream(node: Node, number: int, tokens: int, begun: asyncio.Semaphore | None = None) -> str:
    text = ""
    async with Client(node.url) as client:
        question = [{"role": "user", "content": f"Count from {number} on."}]
        async for event in client.chat(question, max_tokens=tokens, ignore_eos=True, temperature=0.0):
            if isinstance(event, TextDelta):
                text += event.text
                if begun is not None:
                    begun.release()
                    begun = None
            assert not isinstance(event, Done) or event.finish_reason == "length"
    return text


async def activate(node: Node, body: dict[str, object]) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{node.url}/v1/models/activate", json=body) as response:
            return response.status, await response.json()


async def finished(node: Node, outcome: str) -> None:
    async with asyncio.timeout(100):
        while node.status()["update"].get("last", {}).get("outcome") != outcome:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.model
@pytest.mark.timeout(300)
async def test_a_switch_under_eight_streams_loses_none_and_delays_nobody_longer_than_a_load(
    start_node: Start, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "LINGER_S", 0.2)
    node = await start_node(
        engine_slots=9, **SMALL, **PATIENT
    )  # one more, so that a new request waits for the switch alone
    alone = await stream(node, 1, 24)
    begun = asyncio.Semaphore(0)
    first = node.model
    streams = [asyncio.create_task(stream(node, number, 24, begun)) for number in range(1, 9)]
    for _ in streams:
        await begun.acquire()
    asked = time.monotonic()
    status, told = await activate(node, {"model": DEFAULT_MODEL, "probation_s": 0})
    assert (status, told["to"]) == (202, f"local-{DEFAULT_MODEL}")
    waits = []
    while node.model is first:
        before = time.monotonic()
        await stream(node, 9, 1)
        waits.append(time.monotonic() - before)
    load_s = time.monotonic() - asked
    texts = await asyncio.gather(*streams)
    assert texts[0][:20] == alone[:20], "the old model said it to its end"
    assert all(texts)
    assert max(waits) <= load_s
    print(f"load {load_s:.2f} s, new requests waited {max(waits):.2f} s at most")  # noqa: T201
    await finished(node, "committed")
    assert node.status()["update"]["profile"] == f"local-{DEFAULT_MODEL}"
    assert await stream(node, 1, 10)


@pytest.mark.model
async def test_a_switch_without_room_for_two_makes_new_requests_wait_and_cuts_nobody(
    start_node: Start, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "LINGER_S", 0.05)
    node = await start_node(engine_slots=2, **SMALL)
    monkeypatch.setattr(node._updater._applier, "_room", lambda settings: False)
    begun, first = asyncio.Semaphore(0), node.model
    running = asyncio.create_task(stream(node, 1, 60, begun))
    await begun.acquire()
    await activate(node, {"model": DEFAULT_MODEL, "probation_s": 0})
    async with asyncio.timeout(60):
        while node._served._open.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    late = asyncio.create_task(stream(node, 2, 5))
    assert await running
    assert await late, "it waited at the door, and was answered by the new model"
    assert node.model is not first
    await finished(node, "committed")


@pytest.mark.model
async def test_what_is_not_here_or_stands_above_is_refused_at_once(start_node: Start, tmp_path: Path) -> None:
    node = await start_node(model_name=tiny_model.write(tmp_path / "tiny.gguf"), engine_threads=1, engine_slots=2)
    assert (await activate(node, {"model": "no-such-model"}))[0] == 404
    assert (await activate(node, {"profile": "no-such-profile"}))[0] == 404
    assert node.status()["update"]["state"] == "idle"


async def test_a_file_that_is_exchanged_between_check_and_load_changes_nothing(
    start_node: Start, tmp_path: Path
) -> None:
    """What was hashed is what is loaded, whoever puts what in its place meanwhile."""
    path = tiny_model.write(tmp_path / "tiny.gguf", seed=1)
    evil = tiny_model.write(tmp_path / "evil.gguf", seed=2).read_bytes()
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    more = f'model_sha256 = "{sha256}"\n[settings.model]\nname = "{path}"\n[settings.engine]\nslots = 3\nthreads = 1\n'
    wanted = parse(f'name = "n"\ndescription = "d"\n{more}', "n")
    node = await start_node(model_name=path, engine_threads=1, engine_slots=2)
    said = await complete(node)
    applier = node._updater._applier

    def exchanged(_: object) -> bool:
        """Asked between the check and the load."""
        (tmp_path / "new").write_bytes(evil)
        os.replace(tmp_path / "new", path)
        return True

    applier._room = exchanged
    await applier.switch(wanted)
    assert node.model.info.slots == 3
    assert path.read_bytes() == evil
    assert await complete(node) == said, "it is the model that was checked"
    with pytest.raises(Damaged, match="SHA-256 differs"):
        await applier.verify(wanted)
    other = await start_node(model_name=path, engine_threads=1, engine_slots=2)
    assert await complete(other) != said, "the other file would have said something else"


async def complete(node: Node) -> str:
    body = {"prompt": "abcdefgh", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    async with aiohttp.ClientSession() as session, session.post(f"{node.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["choices"][0])


@pytest.mark.model
async def test_a_damaged_model_is_refused_and_the_old_one_serves_on(
    start_node: Start, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte of the installed file is another one, as a bad disk leaves it."""
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    node = await start_node(engine_kind="echo")
    installed = tmp_path / "models" / catalog.load().find(DEFAULT_MODEL).file
    installed.parent.mkdir()
    data = bytearray(await asyncio.to_thread(weights.read_bytes))
    data[len(data) // 2] ^= 1
    await asyncio.to_thread(installed.write_bytes, data)
    applier = node._updater._applier
    wanted = await asyncio.to_thread(choose, DEFAULT_MODEL, "", None, applier.terms)
    applier.terms = Terms(settings(**SMALL), over(settings(**SMALL)))
    with pytest.raises(Damaged, match="SHA-256 differs"):
        await applier.switch(wanted)
    assert node.model.info.engine == "echo"
    assert node.ready
