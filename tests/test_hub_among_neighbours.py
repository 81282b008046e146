"""A hub and a node of one fleet: certificates, listener and databases are the real ones, and no key is anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.mesh.identity import folder_in
from node.runtime import Node
from tests.conftest import settings
from tests.mesh.fleets import Fleet, enrolled
from tests.support.hubs import emptied, until
from tests.support.process import free_port


async def test_a_node_delivers_over_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, port = Fleet(tmp_path), free_port()
    ids = {name: enrolled(fleet.authority, folder_in(tmp_path / name), name).id for name in ("hub", "node")}
    plain = {"engine_kind": "echo", "mesh_discover": False, "streams_durability": "off"}
    nodes = []
    for name, more in (
        ("hub", {"mesh_port": port, "hub_role": "hub"}),
        ("node", {"mesh_port": 0, "mesh_peers": f"127.0.0.1:{port}", "hub_node": ids["hub"], "hub_telemetry_s": 1}),
    ):
        monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / name))
        nodes.append(Node(settings(**plain, **more, outbox_database=tmp_path / name / "outbox.db")))
        await nodes[-1].start()
    central, node = nodes
    try:
        assert node.post.outbox is not None
        assert central.post.inbox is not None
        await node.post.outbox.put("report", b'{"outcome": "committed"}')
        await emptied(node.post.outbox)
        rows = await central.post.inbox.nodes()
        assert [row["id"] for row in rows] == [ids["node"]], "who sent it is what the certificate says"
        assert len(await central.post.inbox.read("report")) == 1
        await until(lambda: central.status()["fleet"]["nodes"][ids["node"]].get("state") == "ready")
        assert node.status()["hub"]["state"] == "reached"
    finally:
        await asyncio.gather(*(one.stop(grace_s=0) for one in nodes))
