"""Who may let the node serve another model, and what is asked of the request."""

from __future__ import annotations

import aiohttp
import pytest

from node.errors import Conflict
from tests.support.service import ScriptedService, scripted, serving

KEY = "k" * 16


async def post(url: str, body: object, **headers: str) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/models/activate", json=body, headers=headers) as response:
            return response.status, await response.json()


async def test_it_is_begun_and_told_how_far_it_is() -> None:
    async with serving(scripted()[0]) as url:
        status, told = await post(url, {"model": "small"})
        assert (status, told) == (202, {"state": "check", "to": "small", "probation_s": 60.0})
        _, told = await post(url, {"profile": "kiosk-x86", "probation_s": 5})
        assert told == {"state": "check", "to": "kiosk-x86", "probation_s": 5.0}


@pytest.mark.parametrize("body", [[], {"model": 3}, {"probation_s": -1}, {"model": "x" * 5000}])
async def test_nonsense_is_refused(body: object) -> None:
    async with serving(scripted()[0]) as url:
        assert (await post(url, body))[0] in (400, 413)


async def test_what_stands_against_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(ScriptedService):
        async def activate(self, model: str, profile: str, probation_s: float) -> dict[str, object]:
            raise Conflict("An update is on its way.")

    async with serving(Busy()) as url:
        assert (await post(url, {"model": "x"}))[0] == 409


async def test_a_page_of_another_site_may_not() -> None:
    async with serving(scripted()[0]) as url:
        assert (await post(url, {"model": "x"}, Origin="https://evil.example"))[0] == 403
        assert (await post(url, {"model": "x"}, Origin=url))[0] == 202


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},  # whose name means 127.0.0.1 by now
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example"},
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
    ],
)
async def test_who_only_seems_to_be_on_this_machine_may_not(headers: dict[str, str]) -> None:
    async with serving(scripted()[0]) as url:
        assert (await post(url, {"model": "x"}, **headers))[0] == 403
        assert (await post(url, {"model": "x"}, Host="localhost:8080"))[0] == 202
        assert (await post(url, {"model": "x"}, Host="[::1]:8080"))[0] == 202


async def test_with_keys_a_key_is_asked_for() -> None:
    async with serving(scripted()[0], api_keys=(KEY,)) as url:
        assert (await post(url, {"model": "x"}))[0] == 401
        assert (await post(url, {"model": "x"}, Authorization=f"Bearer {KEY}"))[0] == 202
