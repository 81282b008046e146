"""A node that is cut off and killed again and again: what it acknowledged arrives, once, in order.

The suite kills a few times; the whole ladder is OUTBOX_KILLS=20 OUTBOX_REQUESTS=500 OUTBOX_RECORDS=5000.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.deferring import CHAT
from tests.support.hubs import FakeHub, hub, until
from tests.support.process import free_port

KILLS = int(os.environ.get("OUTBOX_KILLS", "3"))
REQUESTS = int(os.environ.get("OUTBOX_REQUESTS", "16"))
RECORDS = int(os.environ.get("OUTBOX_RECORDS", "400"))
AT_ONCE = 8


class ForgetfulHub(FakeHub):
    """Takes everything, callbacks too, and sometimes dies before it has said so."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(3)
        self.called: list[tuple[str, bytes]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/hook"):
            id = request.headers["Outpost-Later"]
            self.called.append((id, await request.read()))
            response: web.StreamResponse = web.Response(headers={"Outpost-Later": id})
        else:
            response = await super().handle(request)
        if self.dice.random() < 0.1:
            assert request.transport is not None
            request.transport.abort()
        return response


class Mortal:
    """The node's lives. `acknowledged` are the numbers of records that it said are safe."""

    def __init__(self, folder: Path, hub_port: int) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.hub = f"http://127.0.0.1:{hub_port}"
        self.acknowledged: set[int] = set()
        self.deaths = 0
        self.ready = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        first = max(self.acknowledged, default=-1) + 1
        command = [sys.executable, "-m", "tests.support.keeping_node", str(self.folder), str(self.port), self.hub]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *(str(first), str(RECORDS)),
            stdout=subprocess.PIPE,
            limit=1 << 20,
            env={**os.environ, "OUTPOST_HOME": str(self.folder / "home")},
        )
        self._reading = asyncio.create_task(self._read(self._process))
        await self.ready.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line == b"ready\n":
                self.ready.set()
            elif line.startswith(b"ack ") and line.endswith(b"\n"):
                self.acknowledged.add(int(line.split()[1]))

    async def kill(self) -> None:
        assert self._process is not None
        assert self._reading is not None
        self.ready.clear()
        self._process.kill()
        await self._process.wait()
        await self._reading
        self.deaths += 1

    async def next_life(self) -> None:
        await self.kill()
        await self.start()


async def defer(node: Mortal, session: aiohttp.ClientSession, number: int, promised: dict[int, str]) -> None:
    """Ask until the node has promised an answer; a broken connection is no promise."""
    question = {"model": "echo", "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 64}
    headers = {"Prefer": "respond-async", "Idempotency-Key": f"request-{number}"}
    if number % 10 == 0:
        headers["Outpost-Callback"] = f"{node.hub}/hook"
    while True:
        await node.ready.wait()
        try:
            async with session.post(node.url + CHAT, json=question, headers=headers) as response:
                body = await response.json()
                assert response.status == 202, body
                promised[number] = body["id"]
                return
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(0.05)


async def answer(node: Mortal, session: aiohttp.ClientSession, id: str) -> str:
    while True:
        await node.ready.wait()
        try:
            async with session.get(f"{node.url}/v1/later/{id}") as response:
                if response.status != 202:
                    assert response.status == 200, await response.text()
                    return str((await response.json())["choices"][0]["message"]["content"])
        except (aiohttp.ClientError, OSError):
            pass
        await asyncio.sleep(0.2)


def as_the_hub_has_them(fake: FakeHub) -> list[int]:
    """The records' numbers in the order in which they came, doubles dropped by their ids."""
    seen: set[str] = set()
    numbers = []
    for item in fake.items:
        if item.id not in seen:
            seen.add(item.id)
            numbers.append(int(item.body.split()[1]))
    return numbers


@pytest.mark.timeout(1800)
async def test_what_was_acknowledged_arrives_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret-of-the-caller")  # a test may
    cut = tmp_path / "cut"
    cut.touch()
    node, fake, promised = Mortal(tmp_path, free_port()), ForgetfulHub(), dict[int, str]()
    dark, light = KILLS // 2, KILLS - KILLS // 2
    await node.start()
    try:
        async with aiohttp.ClientSession() as session:
            await in_the_dark(node, session, promised, dark)
            assert not fake.items
            cut.unlink()
            async with hub(fake, int(node.hub.rpartition(":")[2])):
                texts = await in_the_light(node, session, promised, fake, light)
                waiting = {id for number, id in promised.items() if number % 10 == 0}
                await until(lambda: waiting <= {id for id, _ in fake.called})
    finally:
        await node.kill()
    assert node.deaths == KILLS + 1
    numbers = as_the_hub_has_them(fake)
    assert set(numbers) >= node.acknowledged
    assert numbers == sorted(set(numbers)), "each once, and in order"
    assert len(set(promised.values())) == len(promised) == REQUESTS == len(texts)
    for number, text in texts.items():
        assert f"question {number}" in text, number
    answers = {id: {body for got, body in fake.called if got == id} for id in waiting}
    assert all(len(bodies) == 1 for bodies in answers.values()), "one answer each, however often it was told"


async def in_the_dark(node: Mortal, session: aiohttp.ClientSession, promised: dict[int, str], kills: int) -> None:
    """Nobody can answer and no hub is there; requests and records come all the same."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await defer(node, session, number, promised)

    asking = [asyncio.create_task(one(number)) for number in range(REQUESTS)]
    for kill in range(1, kills + 1):
        share = kill / (kills + 1)
        await until(lambda share=share: len(promised) >= share * REQUESTS or len(node.acknowledged) >= share * RECORDS)  # type: ignore[misc]
        await node.next_life()
    await asyncio.gather(*asking)
    await until(lambda: len(node.acknowledged) == RECORDS)


async def in_the_light(
    node: Mortal, session: aiohttp.ClientSession, promised: dict[int, str], fake: FakeHub, kills: int
) -> dict[int, str]:
    """Everything is back, but the node goes on dying."""
    await node.next_life()
    texts: dict[int, str] = {}

    async def fetch() -> None:
        for number, id in promised.items():
            texts[number] = await answer(node, session, id)

    fetching = asyncio.create_task(fetch())
    for kill in range(1, kills):
        share = kill / kills
        await until(lambda share=share: len(texts) >= share * REQUESTS or len(set(fake.ids)) >= share * RECORDS)  # type: ignore[misc]
        await node.next_life()
    await fetching
    await until(lambda: len(set(fake.ids)) >= RECORDS)
    return texts
