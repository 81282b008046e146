"""Nothing that was asked or answered is in the outbox, in what reaches the hub, or in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.support.hubs import FakeHub, hub, until

if TYPE_CHECKING:
    from node.runtime import Node

CANARY = "canary-d41d8cd98f"


async def test_a_node_that_tells_its_hub_of_itself_tells_no_prompt(
    start_node: Callable[..., Awaitable[Node]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeHub()
    database = tmp_path / "outbox.db"
    async with hub(fake) as url:
        with caplog.at_level(logging.DEBUG, "node"):
            node = await start_node(
                engine_kind="echo", hub_url=url, hub_telemetry_s=1, outbox_database=database, streams_durability="off"
            )
            body = {"model": "echo", "messages": [{"role": "user", "content": CANARY}], "user": CANARY}
            headers = {"Outpost-Session": CANARY, "Prefer": "respond-async"}
            async with aiohttp.ClientSession() as session:
                for path in ("/v1/chat/completions", "/v1/chat/completions"):
                    async with session.post(node.url + path, json=body, headers=headers) as response:
                        assert response.status == 200
                        assert CANARY in await response.text(), "an echo says what it was asked"
            told = len(fake.items)
            await until(lambda: len(fake.items) >= told + 2)
            async with aiohttp.ClientSession() as session, session.get(f"{node.url}/v1/status") as response:
                status = await response.json()
    assert CANARY.encode() not in b"".join(fake.bodies)
    assert json.loads(fake.bodies[-1])["fates"]["standard"]["admitted"] >= 2
    assert {"outbox", "later", "hub"} <= status.keys()
    assert CANARY not in json.dumps(status)
    for suffix in ("", "-wal"):
        file = database.with_name(database.name + suffix)
        assert CANARY.encode() not in file.read_bytes()  # a test may
    records = [record for record in caplog.records if record.name.startswith("node")]
    assert records
    assert CANARY not in "".join(str(record.__dict__) for record in records)
