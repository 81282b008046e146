"""Keys and origins."""

import aiohttp
import pytest

from node.admission.quota import parse
from node.layers import load
from node.server.app import create_app
from tests.server.wire import chat, post
from tests.support.service import running_app, scripted, serving

KEYS = ("first-key-0123456789", "second-key-0123456789")


async def call(url: str, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as client, client.request(method, url + path, headers=sent) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return response.status, found, await response.read()


@pytest.mark.parametrize("key", KEYS)
async def test_every_key_opens(key: str) -> None:
    service, _ = scripted()
    async with serving(service, api_keys=KEYS) as url:
        assert (await call(url, "GET", "/v1/models", Authorization=f"Bearer {key}"))[0] == 200
        assert (await call(url, "GET", "/v1/models", Authorization=f"bearer  {key} "))[0] == 200
        assert (await call(url, "GET", "/metrics", Authorization=f"Bearer {key}"))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEYS[0]},
        {"Authorization": f"Basic {KEYS[0]}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer \u00e9\u00fc"},
    ],
    ids=str,
)
async def test_nothing_else_does(headers: dict[str, str]) -> None:
    service, source = scripted()
    async with serving(service, api_keys=KEYS) as url:
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            status, _, body = await call(url, "GET", path, **headers)
            assert status == 401
            assert b'"type":"authentication_error"' in body
            assert b'"code":"invalid_api_key"' in body
        status, _, answer = await post(f"{url}/v1/chat/completions", chat(), headers)
        assert status == 401
        assert answer["Access-Control-Allow-Origin"] == "*"
        assert source.submitted == []


async def test_health_and_the_page_ask_for_no_key() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=KEYS) as url:
        for path in ("/health/live", "/health/ready", "/"):
            assert (await call(url, "GET", path))[0] == 200


async def test_a_preflight_needs_no_key_and_allows_what_clients_send() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=KEYS) as url:
        asked = "authorization,content-type,x-stainless-os"
        status, headers, body = await call(
            url, "OPTIONS", "/v1/chat/completions", Origin="https://a.example", Access_Control_Request_Headers=asked
        )
        assert (status, body) == (204, b"")
        assert headers["access-control-allow-origin"] == "*"
        assert headers["access-control-allow-headers"].startswith("authorization, content-type")
        assert "x-stainless-os" in headers["access-control-allow-headers"]
        assert "POST" in headers["access-control-allow-methods"]


async def test_an_odd_preflight_is_not_echoed() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        _, headers, _ = await call(url, "OPTIONS", "/v1/models", Access_Control_Request_Headers="a;b:<c>")
        assert headers["access-control-allow-headers"] == "authorization, content-type"


async def test_only_listed_origins_are_allowed() -> None:
    service, _ = scripted()
    async with serving(service, allowed_origins=("https://a.example",)) as url:
        _, headers, _ = await call(url, "GET", "/v1/models", Origin="https://a.example")
        assert headers["access-control-allow-origin"] == "https://a.example"
        assert headers["vary"] == "Origin"
        for origin in ({"Origin": "https://b.example"}, {}):
            _, headers, _ = await call(url, "GET", "/v1/models", **origin)
            assert "access-control-allow-origin" not in headers
            assert headers["vary"] == "Origin"


FILE = """
[tenants.acme.keys.alice]
key = "the-key-of-alice-0123"
level = "interactive"
ceiling = "critical"

[tenants.acme.keys.bob]
key = "the-key-of-bob-012345"
"""


async def test_the_quota_files_keys_open_too_and_say_who_asks() -> None:
    service, source = scripted()
    settings = load(environment={}, flags={"server.api_keys": KEYS[0]})
    async with running_app(create_app(settings, service, quotas=parse(FILE))) as url:
        for key, status in (("the-key-of-alice-0123", 200), ("the-key-of-bob-012345", 200), (KEYS[0], 200), ("x", 401)):
            body = chat(priority="critical")
            got, _, headers = await post(f"{url}/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})
            assert got == status
        assert "Outpost-Priority" not in headers, "whoever is not let in has no level"
    assert [(request.caller.tenant, request.level) for request in source.submitted] == [
        ("acme", "critical"),
        ("acme", "interactive"),  # asks for more than its ceiling
        ("", "interactive"),
    ]
