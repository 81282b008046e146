"""All of routing joined in a real node: two nodes, their listener, the status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from node.errors import SettingsError
from node.machine.heat import Heat
from node.machine.supply import Supply
from node.mesh.crossing import Crossing
from node.mesh.identity import folder_in
from node.mesh.router import SERVED_BY
from node.runtime import Node
from tests.conftest import settings
from tests.mesh.fleets import Fleet, enrolled
from tests.support.near import Near, on_battery
from tests.support.process import free_port
from tests.support.service import ByteModel, running_app

TEXT = "all work and no play makes jack a dull boy " * 10


@pytest.fixture
async def two() -> AsyncIterator[tuple[Node, Near]]:
    """A node, and one neighbour that really listens."""
    first, near = None, Near()
    second = Node(settings(engine_kind="echo"), neighbourhood=Near())
    await second.start()
    app = web.Application()
    second.crossing.serve(app, lambda request: "first")
    async with running_app(app) as url:
        near.add("second", url, model_digest=second.crossing.digest)
        first = Node(settings(engine_kind="echo", routes_neighbour_s=0), neighbourhood=near)
        await first.start()
        yield first, near
        await first.stop(grace_s=0)
        await near.close()
    await second.stop(grace_s=0)


async def ask(node: Node, **headers: str) -> tuple[dict[str, object], str]:
    body = {"messages": [{"role": "user", "content": TEXT}]}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{node.url}/v1/chat/completions", json=body, headers=headers) as response:
            return await response.json(), response.headers[SERVED_BY]


async def test_a_neighbour_answers_and_both_say_so(two: tuple[Node, Near]) -> None:
    node, _ = two
    whole, served_by = await ask(node)
    assert served_by == "local"
    assert "outpost" not in whole["usage"]  # type: ignore[operator]
    node.crossing.here._look = on_battery
    await node.crossing.here.see()
    whole, served_by = await ask(node)
    assert served_by == "peer/second"
    assert whole["usage"]["outpost"] == {"served_by": ["peer/second"]}  # type: ignore[index]
    assert whole["choices"][0]["message"]["content"] == TEXT  # type: ignore[index]
    status = node.status()
    assert status["routes"]["decided"]["peer"] == {"power": 1}
    assert status["serving"]["slots"] == 4
    assert status["queue"]["running"] == 0


async def test_a_neighbour_with_another_model_is_not_asked_and_refuses(two: tuple[Node, Near]) -> None:
    node, near = two
    node.crossing.here._look = on_battery
    await node.crossing.here.see()
    near.change("second", model_digest="other")
    assert (await ask(node))[1] == "local"
    node.crossing.places._digest = "other"
    node.crossing.places._peers.clear()
    _, served_by = await ask(node)
    assert served_by == "peer/second, local", "it was believed, refused with 409, and this node answered"


async def test_a_node_alone_says_that_it_answers_itself() -> None:
    node = Node(settings(engine_kind="echo"))
    await node.start()
    try:
        assert (await ask(node))[1] == "local"
        assert node.status()["routes"]["decided"]["local"] == {"alone": 1}
        assert "serving" not in node.status()
        assert node.crossing.digest == ""
        await asyncio.wait_for(node.crossing.drained(), 5)
    finally:
        await node.stop(grace_s=0)


async def test_a_request_that_comes_round_is_answered_where_it_was_last() -> None:
    """Two nodes that would both rather have the other one work."""
    nodes, nears = [], [Near(), Near()]
    async with AsyncExitStack() as stack:
        for near in nears:
            told = settings(engine_kind="echo", routes_neighbour_s=0, routes_power_s=60, routes_hops=4)
            node = Node(told, look=on_battery, neighbourhood=near)
            await node.start()
            stack.push_async_callback(node.stop, 0)
            stack.push_async_callback(near.close)
            nodes.append(node)
        for node, other, name in ((nodes[0], nears[1], "first"), (nodes[1], nears[0], "second")):
            app = web.Application()
            node.crossing.serve(app, lambda request: "the other")
            other.add(name, await stack.enter_async_context(running_app(app)), model_digest=node.crossing.digest)
        whole, served_by = await ask(nodes[0])
        assert (whole["choices"][0]["message"]["content"], served_by) == (TEXT, "peer/second")  # type: ignore[index]
        assert nodes[0].status()["serving"]["refused"] == 1, "it knew its own request again"
        assert nodes[1].status()["serving"]["served"] == 1


def test_a_key_that_is_missing_is_told_before_anything_runs(tmp_path: Path) -> None:
    wrong = settings(cloud_url="http://127.0.0.1:1/v1", cloud_api_key_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="api_key_file"):
        Crossing(wrong, ByteModel())


async def test_two_enrolled_nodes_answer_for_each_other_over_mutual_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is faked here: certificates, listener, probes and sketch are the real ones."""
    fleet = Fleet(tmp_path)
    port = free_port()
    nodes = []
    for name, more in (("a", {"mesh_port": port}), ("b", {"mesh_port": 0, "mesh_peers": f"127.0.0.1:{port}"})):
        enrolled(fleet.authority, folder_in(tmp_path / name), name)
        monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / name))
        told = settings(engine_kind="echo", mesh_discover=False, routes_neighbour_s=0, routes_power_s=60, **more)
        nodes.append(Node(told, look=on_battery if name == "b" else lambda: (Heat(), Supply())))
        await nodes[-1].start()
    first, second = nodes
    try:
        async with asyncio.timeout(60):
            while (await ask(second))[1] == "local":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        whole, served_by = await ask(second)
        assert served_by == f"peer/{first._neighbours.id}"
        assert whole["choices"][0]["message"]["content"] == TEXT  # type: ignore[index]
        assert first.status()["serving"]["served"] >= 2
        assert first.status()["routes"]["decided"]["local"], "it answers itself, whoever asked"
        assert (await ask(first))[1] == "local", "the other one is on battery"
        await first.stop(grace_s=0)
        assert (await ask(second))[1].endswith("local")
    finally:
        await asyncio.gather(*(node.stop(grace_s=0) for node in nodes))
