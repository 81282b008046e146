"""What of warm prefixes is told to whom, and who may erase."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import ClientSession, web

from node.admission.quota import Holder, Quotas
from node.server.boundary import map_errors
from node.server.callers import Callers, user_of
from node.server.guard import Identity
from node.server.prewarm import add_prewarm
from tests.support.service import ScriptedPrewarming, ScriptedService, running_app, serving

KEYS = {"acme-key-of-16-letters": "acme", "operators-key-16": ""}


def row(id: int, tenant: str | None) -> dict[str, Any]:
    return {"id": id, "tenant": tenant, "tokens": 100}


@pytest.fixture
def prewarming() -> ScriptedPrewarming:
    return ScriptedPrewarming([row(1, "acme"), row(2, "other"), row(3, None)])


@pytest.fixture
async def url(prewarming: ScriptedPrewarming) -> AsyncIterator[str]:
    """A node whose keys have tenants."""
    quotas = Quotas({user_of(key): Holder(tenant) for key, tenant in KEYS.items()})
    app = web.Application(middlewares=[map_errors])
    add_prewarm(app, ScriptedService(prewarm=prewarming), Identity(True, Callers(b"secret", quotas)))
    async with running_app(app) as address:
        yield address


async def ask(method: str, url: str, key: str) -> tuple[int, Mapping[str, Any]]:
    async with (
        ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.request(method, f"{url}/v1/prewarm") as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(("key", "seen"), [("acme-key-of-16-letters", [1, 3]), ("operators-key-16", [1, 2, 3])])
async def test_tenants_see_their_own_and_templates(url: str, key: str, seen: list[int]) -> None:
    status, body = await ask("GET", url, key)
    assert status == 200
    assert [prefix["id"] for prefix in body["prefixes"]] == seen


async def test_a_tenant_may_not_erase_what_is_everybodys(url: str, prewarming: ScriptedPrewarming) -> None:
    status, body = await ask("DELETE", url, "acme-key-of-16-letters")
    assert status == 403
    assert body["error"]["code"] == "forbidden"
    assert prewarming.forgot == 0


async def test_the_operator_may(url: str, prewarming: ScriptedPrewarming) -> None:
    assert await ask("DELETE", url, "operators-key-16") == (200, {"forgotten": 3})
    assert prewarming.forgot == 1
    assert await ask("GET", url, "operators-key-16") == (200, {"prefixes": []})


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_node_that_asks_for_a_key_asks_for_it_here(method: str, prewarming: ScriptedPrewarming) -> None:
    async with serving(ScriptedService(prewarm=prewarming), api_keys=("the-only-key-there-is",)) as address:
        assert (await ask(method, address, "another-key-of-16"))[0] == 401
        assert (await ask(method, address, "the-only-key-there-is"))[0] == 200
