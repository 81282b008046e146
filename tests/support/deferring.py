"""A scripted node that keeps what it cannot answer, on a real port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from node.admission.quota import Quotas
from node.layers import load
from node.mesh.post import PostOffice
from node.server.app import LATER, create_app
from node.store.backlog import Reconnect
from tests.support.service import ScriptedService, running_app

CHAT = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "canary-question"}]}
WAITS = {"Prefer": "respond-async"}
KEYS = ("alice-has-a-long-key", "bobs-key-is-long-too")


@dataclass
class Deferring:
    """One that runs; `url` is where."""

    url: str
    session: aiohttp.ClientSession
    post: PostOffice

    async def ask(self, headers: Mapping[str, str] = WAITS, key: str = "", **body: Any) -> tuple[int, Any, Any]:
        """Ask by HTTP; gives status, body and headers."""
        return await self.send("POST", body.pop("path", CHAT), headers, key, {**BODY, **body})

    async def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, key: str = "", body: Any = None
    ) -> tuple[int, Any, Any]:
        sent = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        async with self.session.request(method, self.url + path, json=body, headers=sent) as response:
            text = await response.text()
            if response.content_type == "application/json":
                return response.status, await response.json(), response.headers
            return response.status, text, response.headers


@contextlib.asynccontextmanager
async def deferring(
    service: ScriptedService, folder: Path, quotas: Quotas | None = None, **flags: Any
) -> AsyncIterator[Deferring]:
    """A life of the node; another one in the same folder goes on with what this one leaves."""
    named = {key.replace("_", ".", 1): str(value) for key, value in flags.items()}
    settings = load(environment={}, flags={"server.port": "0", "outbox.database": str(folder / "outbox.db"), **named})
    post = PostOffice(settings, sweep_s=0.05)
    await post.start()
    app = create_app(settings, service, quotas=quotas, later=post.later, inbox=post.inbox)
    app[LATER].reconnect = Reconnect(0.02, 0.1)
    try:
        async with running_app(app) as url, aiohttp.ClientSession() as session:
            yield Deferring(url, session, post)
    finally:
        await post.stop()
