"""The cloud as a second server process with an API key: used, lost, found again; and silence where it is not wanted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from node.mesh.router import SERVED_BY
from node.runtime import Node
from tests.conftest import settings
from tests.support.near import on_battery
from tests.support.process import free_port, serving

KEY = "a-key-that-is-long-enough"
TEXT = "tell me of my friend ann@example.com, please. " * 12
HERE = "cloud/127.0.0.1"


async def ask(node: Node, text: str = TEXT, **headers: str) -> tuple[str, str]:
    """The answer, and who gave it."""
    body = {"messages": [{"role": "user", "content": text}]}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{node.url}/v1/chat/completions", json=body, headers=headers) as response:
            whole = await response.json()
            return whole["choices"][0]["message"]["content"], response.headers[SERVED_BY]


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Any]:
    """Start nodes that would rather ask a cloud at this address."""
    nodes: list[Node] = []

    async def start(url: str, key: str = KEY, **flags: object) -> Node:
        (tmp_path / "key").write_text(key)
        more = {"cloud_handicap_s": 0, "routes_power_s": 3600, "cloud_policy": "always", **flags}
        told = settings(engine_kind="echo", cloud_url=f"{url}/v1", cloud_api_key_file=tmp_path / "key", **more)
        node = Node(told, look=on_battery)
        await node.start()
        nodes.append(node)
        return node

    yield start
    await asyncio.gather(*(node.stop(grace_s=0) for node in nodes))


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    with serving("--engine", "echo", OUTPOST_SERVER_API_KEYS=KEY) as (_, url):
        yield url


async def test_policies(asking: Any, cloud: str) -> None:
    always = await asking(cloud)
    assert await ask(always) == (TEXT, HERE)
    assert await ask(always, **{"Outpost-Cloud": "never"}) == (TEXT, "local")
    redacted = await asking(cloud, cloud_policy="redacted")
    assert await ask(redacted) == (TEXT.replace("ann@example.com", "[email]"), HERE)
    polite = await asking(cloud, cloud_policy="ask")
    assert await ask(polite) == (TEXT, "local")
    assert await ask(polite, **{"Outpost-Cloud": "allow"}) == (TEXT, HERE)
    async with aiohttp.ClientSession() as session:
        async with session.post(
            f"{polite.url}/v1/chat/completions", headers={"Outpost-Cloud": "maybe"}, json={}
        ) as bad:
            assert bad.status == 400


async def test_a_wrong_key_is_told_and_this_node_answers(
    asking: Any, cloud: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = await asking(cloud, key="a-key-of-somebody-else")
    assert await ask(wrong) == (TEXT, f"{HERE}, local")
    assert "set up wrongly" in caplog.text
    assert await ask(wrong) == (TEXT, "local")
    upstream = wrong.status()["routes"]["upstreams"][HERE]
    assert upstream["state"] == "open"
    assert "401" in upstream["blocked"]


async def test_it_breaks_in_the_middle_and_the_breaker_opens_and_closes(asking: Any, tmp_path: Path) -> None:
    port, environment = free_port(), {"OUTPOST_SERVER_API_KEYS": KEY, "OUTPOST_HOME": str(tmp_path)}
    arguments = ("--engine", "echo", "--set", f"server.port={port}")
    long = "the sea is wide and the night is long. " * 100
    with serving(*arguments, **environment) as (process, url):
        node = await asking(url)
        body = {"messages": [{"role": "user", "content": long}], "stream": True}
        text, pieces = "", 0
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{node.url}/v1/chat/completions", json=body) as response:
                assert response.headers[SERVED_BY] == HERE
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        text += event["choices"][0]["delta"].get("content", "")
                        pieces += 1
                        if pieces == 20:
                            process.kill()
        assert text == long
        assert event["outpost"]["served_by"] == [HERE, "local"]
    for _ in range(5):
        assert (await ask(node))[0] == TEXT
    assert node.status()["routes"]["upstreams"][HERE]["state"] in ("open", "half-open")
    assert await ask(node) == (TEXT, "local"), "it is not even tried"
    with serving(*arguments, **environment):
        async with asyncio.timeout(60):
            while (await ask(node))[1] != HERE:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert node.status()["routes"]["upstreams"][HERE]["state"] == "closed"


def namespace(name: str, *command: str) -> None:
    subprocess.run(["ip", *(("-n", name) if name else ()), *command], check=True, capture_output=True)


@pytest.fixture
def wire() -> Iterator[tuple[str, str]]:
    """A namespace with one interface towards an address where nobody answers."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("namespaces need root and iproute2")
    near, far = f"routes{os.getpid()}a", f"routes{os.getpid()}b"
    made = subprocess.run(["ip", "netns", "add", near], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("this machine has no network namespaces")
    try:
        namespace("", "netns", "add", far)
        for name in (near, far):
            disable = "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"
            subprocess.run(["ip", "netns", "exec", name, "sysctl", "-qw", *disable.split()], check=True)
        namespace(near, "link", "add", "out", "type", "veth", "peer", "name", "in", "netns", far)
        for name, interface, address in ((near, "out", "10.9.8.1/24"), (far, "in", "10.9.8.2/24")):
            namespace(name, "link", "set", "lo", "up")
            namespace(name, "addr", "add", address, "dev", interface)
            namespace(name, "link", "set", interface, "up")
        yield near, "10.9.8.2"
    finally:
        for name in (near, far):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.parametrize(("policy", "leaves"), [("never", False), ("always", True)])
def test_with_never_no_packet_leaves(wire: tuple[str, str], policy: str, leaves: bool) -> None:
    name, address = wire
    changes = [
        f"cloud.url=http://{address}:9/v1",
        f"cloud.policy={policy}",
        "routes.power_s=3600",
        "cloud.handicap_s=0",
    ]
    command = ["ip", "netns", "exec", name, sys.executable, "-m", "tests.support.counted_node", "out", *changes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["text"] == "my secret is 42"
    assert told["served_by"] == (f"cloud/{address}, local" if leaves else "local")
    assert (told["packets"] > 0) is leaves, told
