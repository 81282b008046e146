"""Answers that survive: cut connections, a killed node, a stopped node."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cuts import Reader, plan, read
from tests.support.process import free_port, home_with_models, wait_ready

COUNT = int(os.environ.get("SURVIVAL_COUNT", "12"))


class Reviving:
    """A node that is started again on the same port and store whenever it was killed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "node.log"
        self._command = [sys.executable, "-m", "node", "serve", "--port", str(self.port), *arguments]
        self._command += ["--set", f"streams.database={folder / 'node.db'}"]
        self._environment = {**os.environ, "OUTPOST_HOME": home_with_models(folder)}
        self._process: subprocess.Popen[bytes] | None = None
        self._reviving = asyncio.Lock()
        self.deaths = 0

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.to_thread(subprocess.Popen, self._command, stderr=log, env=self._environment)
        await asyncio.to_thread(wait_ready, self.url, self._process)

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process and start the next life, unless somebody else is just doing so."""
        if self._reviving.locked():
            return
        async with self._reviving:
            assert self._process
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait)
            self.deaths += 1
            await self.start()

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


async def journal_text(url: str, id: str) -> str:
    """The whole answer as the node has it."""
    whole = Reader({}, [], id=id)

    async def never(_: Reader) -> None:
        raise AssertionError

    await read(whole, lambda: url, never)
    return whole.text


@pytest.mark.timeout(600)
async def test_every_answer_survives_cuts_and_kills(tmp_path: Path) -> None:
    node = Reviving(tmp_path, "--engine", "echo", "--slots", "8", "--set", "queue.max_waiting=1000")
    await node.start()
    dice = random.Random(1)
    readers = plan(COUNT, 400, seed=1)

    async def cut(reader: Reader) -> None:
        if dice.random() < 0.25:
            await node.kill()

    try:
        await asyncio.gather(*(read(reader, lambda: node.url, cut) for reader in readers))
        for reader in readers:
            assert reader.text == await journal_text(node.url, reader.id)
            asked = reader.body["messages"][0]["content"]  # type: ignore[index]
            assert reader.text == asked[: len(reader.text)]
            assert len(reader.text.encode()) > 100
        print(f"{COUNT} answers, {sum(r.resumes for r in readers)} connections, {node.deaths} kills")  # noqa: T201
        assert node.deaths >= 1
    finally:
        node.stop()


@pytest.mark.model
@pytest.mark.timeout(300)
async def test_the_real_model_goes_on_after_a_kill_with_one_text(tmp_path: Path, weights: Path) -> None:
    node = Reviving(tmp_path, "--model", str(weights), "--threads", "1", "--slots", "4", "--set", "engine.context=1024")
    await node.start()
    messages = [{"role": "user", "content": "Tell a long story about a river."}]
    body = {"messages": messages, "stream": True, "max_tokens": 60, "temperature": 0.8, "seed": 3, "ignore_eos": True}

    async def cut(reader: Reader) -> None:
        await node.kill(signal.SIGKILL if reader.resumes == 0 else signal.SIGTERM)

    try:
        undisturbed, cut_twice = Reader(body, []), Reader(body, [15, 35])
        await read(undisturbed, lambda: node.url, cut)
        await read(cut_twice, lambda: node.url, cut)
        assert node.deaths == 2
        assert cut_twice.last == undisturbed.last == 59
        assert cut_twice.text == await journal_text(node.url, cut_twice.id)
        assert cut_twice.text[:40] == undisturbed.text[:40]
    finally:
        node.stop()


async def test_a_stopped_node_leaves_its_answers_for_the_next_life(tmp_path: Path) -> None:
    node = Reviving(tmp_path, "--engine", "echo", "--set", "server.grace_s=0")
    await node.start()
    (reader,) = plan(1, 3000, seed=2)
    reader.cuts = [50]

    async def cut(_: Reader) -> None:
        await node.kill(signal.SIGTERM)

    try:
        await read(reader, lambda: node.url, cut)
        assert reader.text == await journal_text(node.url, reader.id)
        assert node.deaths == 1
    finally:
        node.stop()


async def test_an_ended_answer_is_still_there_in_the_next_life(tmp_path: Path) -> None:
    node = Reviving(tmp_path, "--engine", "echo")
    await node.start()
    (reader,) = plan(1, 100, seed=3)
    reader.cuts = []

    async def never(_: Reader) -> None:
        raise AssertionError

    try:
        await read(reader, lambda: node.url, never)
        await node.kill()
        assert await journal_text(node.url, reader.id) == reader.text
    finally:
        node.stop()
