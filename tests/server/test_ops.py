"""Health answers at once, and tells the truth."""

import asyncio
import json

import aiohttp

from tests.server.wire import chat, open_post, until
from tests.support.service import scripted, serving


async def get(url: str) -> tuple[int, dict[str, str]]:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, json.loads(await response.read())


async def test_alive_whatever_else_is_the_matter() -> None:
    service, _ = scripted()
    service.ready, service.draining = False, True
    async with serving(service) as url:
        assert await get(f"{url}/health/live") == (200, {"status": "alive"})


async def test_ready_follows_the_service() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        assert await get(f"{url}/health/ready") == (200, {"status": "ready"})
        service.ready = False
        assert await get(f"{url}/health/ready") == (503, {"status": "starting"})
        service.ready, service.draining = True, True
        assert await get(f"{url}/health/ready") == (503, {"status": "draining"})


async def test_health_answers_while_all_slots_are_busy() -> None:
    gate = asyncio.Event()
    service, source = scripted(gate, slots=1)
    async with serving(service) as url:
        connections = [await open_post(url, "/v1/chat/completions", chat(stream=True)) for _ in range(8)]
        await until(lambda: source.busy == 8)
        assert (await asyncio.wait_for(get(f"{url}/health/live"), 30))[0] == 200
        for _, writer in connections:
            writer.close()


async def test_health_asks_for_no_key_but_metrics_do() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=("a-key-of-16-letters",)) as url:
        assert (await get(f"{url}/health/ready"))[0] == 200
        assert (await get(f"{url}/metrics"))[0] == 401


async def test_status_asks_for_a_key_and_tells_every_part() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=("a-key-of-16-letters",)) as url:
        assert (await get(f"{url}/v1/status"))[0] == 401
    async with serving(service) as url:
        status, body = await get(f"{url}/v1/status")
        assert status == 200
        node = body.pop("node")
        assert body == service.status()
        assert isinstance(node, dict)
        assert node["state"] == "ready"
        service.draining = True
        assert (await get(f"{url}/v1/status"))[1]["node"]["state"] == "draining"  # type: ignore[index]
