"""The cloud tier on Ray, run for real: two replicas behind one route, keys, streams, cancel, health, drain."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import psutil
import pytest

from node.errors import OperatorError
from tests.conftest import settings
from tests.support.process import free_port

TOOL = Path(__file__).parents[2] / "tools" / "cloud" / "ray_serve.py"
KEY = {"authorization": "Bearer secret-of-the-tests"}
PATIENCE_S = 300
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra cloud)")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_serve", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ray_serve"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ([], (1, 1, 1.0, 0.0)),
        (["--replicas", "2"], (2, 2, 1.0, 0.0)),
        (["--replicas", "1-4", "--gpus", "1"], (1, 4, 1.0, 1.0)),
    ],
)
def test_how_many_replicas(tool: ModuleType, words: list[str], size: tuple[float, ...]) -> None:
    found = tool._size(tool._parser().parse_args(words))
    assert (found.least, found.most, found.cpus, found.gpus) == size


@pytest.mark.parametrize("replicas", ["0", "4-1", "many", "-3"])
def test_numbers_that_make_no_sense(tool: ModuleType, replicas: str) -> None:
    with pytest.raises(OperatorError, match="--replicas"):
        tool._size(tool._parser().parse_args([f"--replicas={replicas}"]))
    assert tool.main([f"--replicas={replicas}"]) == 1


def test_an_open_address_needs_a_key(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--host", "0.0.0.0", "--engine", "echo"]) == 1
    assert "key" in capsys.readouterr().err


def test_a_replica_is_a_node_on_loopback_that_promises_no_stream_again(tool: ModuleType) -> None:
    asked = settings(
        server_host="0.0.0.0", server_api_keys="secret-of-the-tests", streams_resumable="always", link_enabled="true"
    )
    inner = tool.inner(asked, tool.Size(cpus=4))
    assert (inner.server.host, inner.server.port, inner.server.api_keys) == ("127.0.0.1", 0, ("secret-of-the-tests",))
    assert (inner.streams.resumable, inner.link.enabled, inner.tune.auto) == ("never", False, False)
    assert inner.engine.threads == 4
    assert tool.inner(settings(engine_threads=3), tool.Size(cpus=4)).engine.threads == 3


class Tier:
    """The tool as a process, with two replicas of one slot each that let nobody wait."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = folder / "tier.log"
        command = [sys.executable, str(TOOL), "--engine", "echo", "--slots", "1", "--port", str(port)]
        command += ["--replicas", "2", "--cpus", "0.25", "--set", "queue.max_waiting=0"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTPOST_")}
        paths = os.pathsep.join(filter(None, (str(TOOL.parents[2]), os.environ.get("PYTHONPATH"))))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                stdout=log,
                cwd=folder,
                env={**clean, "OUTPOST_SERVER_API_KEYS": "secret-of-the-tests", "PYTHONPATH": paths},
            )

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def replicas(self) -> list[psutil.Process]:
        return [one for one in self.family() if _name(one).startswith("ray::ServeReplica")]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.1)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    started = Tier(tmp_path_factory.mktemp("tier"))
    try:
        asyncio.run(started.until(lambda: "ready: " in started.log.read_text()))
        yield started
    finally:
        if started.process.poll() is None:
            family = started.family()
            started.process.kill()
            for one in family:
                if one.is_running():
                    one.kill()
        started.process.wait()


def body(length: int, stream: bool = True) -> dict[str, Any]:
    """A question whose answer takes this many tokens."""
    asked = [{"role": "user", "content": "x" * 10}]
    return {"model": "echo", "messages": asked, "stream": stream, "max_tokens": length, "ignore_eos": True}


async def text_of(answer: aiohttp.ClientResponse) -> str:
    said = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"] for line in said]
    return "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)


@needs_ray
@pytest.mark.timeout(600)
async def test_two_replicas_answer_at_once_and_ask_for_the_key(tier: Tier) -> None:
    chat = f"{tier.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as client:
        async with client.post(chat, json=body(5)) as refused:
            assert refused.status == 401
            assert (await refused.json())["error"]["message"]
        async with client.get(f"{tier.url}/v1/models", headers=KEY) as models:
            assert [one["id"] for one in (await models.json())["data"]] == ["echo"]
        async with client.get(f"{tier.url}/metrics", headers=KEY) as other:
            assert other.status == 404
        async with client.post(chat, json=body(8000), headers=KEY) as one:  # each has one slot, and nobody waits
            await one.content.readline()
            async with client.post(chat, json=body(4000), headers=KEY) as two:
                await two.content.readline()
                assert (one.status, two.status) == (200, 200)
                assert not one.content.at_eof()
                assert await text_of(two) == "x" * 4000
            assert await text_of(one) == "x" * 8000
    assert len(tier.replicas()) == 2


@needs_ray
@pytest.mark.timeout(600)
async def test_only_this_machine_hears_it(tier: Tier) -> None:
    heard = {
        connection.laddr.ip
        for process in [psutil.Process(tier.process.pid), *tier.family()]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert heard <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@needs_ray
@pytest.mark.timeout(600)
async def test_who_goes_away_frees_the_slot(tier: Tier) -> None:
    chat = f"{tier.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as client:
        for _ in range(4):
            async with client.post(chat, json=body(8000), headers=KEY) as left:
                assert left.status == 200
                await left.content.readline()
        async with asyncio.timeout(PATIENCE_S), client.post(chat, json=body(10, False), headers=KEY) as after:
            assert (await after.json())["choices"][0]["message"]["content"] == "x" * 10


@needs_ray
@pytest.mark.timeout(600)
async def test_a_replica_that_dies_is_replaced(tier: Tier) -> None:
    dead = tier.replicas()[0]
    dead.kill()
    await tier.until(lambda: len([one for one in tier.replicas() if one.pid != dead.pid]) == 2)
    async with aiohttp.ClientSession() as client, asyncio.timeout(PATIENCE_S):
        status = 0
        while status != 200:
            async with client.post(f"{tier.url}/v1/chat/completions", json=body(10, False), headers=KEY) as answer:
                status = answer.status


@needs_ray
@pytest.mark.timeout(600)
async def test_a_signal_lets_what_runs_finish(tier: Tier) -> None:
    family = tier.family()
    chat = f"{tier.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as client:
        async with client.post(chat, json=body(8000), headers=KEY) as running:
            await running.content.readline()
            async with client.post(chat, json=body(1, False), headers=KEY) as other:  # waits for the second replica
                assert other.status == 200
            tier.process.send_signal(signal.SIGTERM)
            status = 200
            while status == 200:
                async with client.post(chat, json=body(1, False), headers=KEY) as refused:
                    status, wait = refused.status, refused.headers.get("retry-after")
            assert (status, wait) == (503, "5")
            assert await text_of(running) == "x" * 8000
        assert await asyncio.to_thread(tier.process.wait, PATIENCE_S) == 0
    _, left = await asyncio.to_thread(psutil.wait_procs, family, PATIENCE_S)
    assert not left
