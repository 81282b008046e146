"""Bad bodies and broken handlers: each a clear error, and the next request is fine."""

import asyncio
import gzip
import io
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from node.errors import Expired, Overloaded, RateLimited, Unavailable
from node.server import boundary
from node.server.sse import STREAM
from tests.server.wire import chat, open_post, post, refused
from tests.support.service import ByteModel, ScriptedService, scripted, serving

PATH = "/v1/chat/completions"
LIMIT = 4 << 20


async def pieces(size: int) -> Any:
    for _ in range(size >> 16):
        yield b" " * (1 << 16)


@pytest.mark.parametrize("chunked", [True, False])
async def test_ten_megabytes_are_a_413_and_the_next_request_is_fine(chunked: bool) -> None:
    service, _ = scripted()
    async with serving(service) as url, aiohttp.ClientSession() as client:
        data = pieces(10 << 20) if chunked else io.BytesIO(b" " * (10 << 20))
        async with client.post(url + PATH, data=data) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "request_too_large"
            assert response.headers["x-request-id"]
        async with client.post(url + PATH, json=chat()) as response:
            assert response.status == 200


async def test_a_bomb_of_zeros_is_a_413() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        bomb = gzip.compress(b" " * (64 << 20), 9)
        status, _, _ = await post(url + PATH, bomb, {"Content-Encoding": "gzip"})
        assert status in (400, 413)
        assert (await post(url + PATH, chat()))[0] == 200


async def test_a_body_that_breaks_off_is_a_400(caplog: pytest.LogCaptureFixture) -> None:
    service, _ = scripted()
    async with serving(service) as url:
        status, body, _ = await post(url + PATH, b"no gzip", {"Content-Encoding": "gzip"})
        assert status == 400
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody() -> None:
    service, source = scripted()
    async with serving(service) as url:
        _, writer = await open_post(url, PATH, "", length=999)
        writer.close()
        assert (await post(url + PATH, chat()))[0] == 200
        assert len(source.submitted) == 1


async def test_a_body_that_trickles_in_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "BODY_S", 0.1)
    service, _ = scripted()
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, "", "Connection: close", length=999)
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.parametrize(("asked", "sent"), [(None, 1), (0, 1), (7, 7), (120, 120), (9999, 120)])
@pytest.mark.parametrize("kind", [Overloaded, Unavailable])
async def test_retry_after_is_between_1_and_120(kind: Any, asked: int | None, sent: int) -> None:
    service, source = scripted()
    source.refusal = kind("Not now.", retry_after=asked)
    async with serving(service) as url:
        status, body, headers = await post(url + PATH, chat(stream=True))
        assert status == kind.status
        assert headers["Retry-After"] == str(sent)
        assert json.loads(body)["error"]["message"] == "Not now."


class _Begun:
    """As much of a begun stream as the boundary looks at."""

    def __init__(self) -> None:
        self.response, self.status = web.StreamResponse(), 200


async def test_a_reader_that_a_write_found_gone_was_not_served() -> None:
    request, begun = make_mocked_request("POST", PATH), _Begun()
    request[STREAM] = begun  # type: ignore[misc]

    async def handler(request: web.Request) -> web.StreamResponse:
        raise ConnectionResetError("the reader is gone")

    assert await boundary.map_errors(request, handler) is begun.response
    assert begun.status == 499


class BrokenModel(ByteModel):
    """A bug of ours while a prompt is being made."""

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        raise ZeroDivisionError("a secret detail")


async def test_a_bug_is_logged_and_answered_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedService(model=BrokenModel())) as url:
        with caplog.at_level(logging.ERROR):
            status, error = await refused(url, chat())
        assert (status, error["type"], error["code"]) == (500, "server_error", None)
        assert "secret" not in json.dumps(error)
        assert "ZeroDivisionError" in caplog.text


class BrokenTokens(ByteModel):
    """A bug of ours while an answer streams."""

    def decode(self, ids: Sequence[int]) -> bytes:
        raise ZeroDivisionError("a secret detail")


async def test_a_bug_in_a_stream_ends_it_with_an_error_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    service, source = scripted()
    service.model = BrokenTokens()
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, chat(stream=True, logprobs=True, top_logprobs=1))
        raw = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert b'data: {"error":' in raw
        assert b"[DONE]" not in raw
        assert b"secret" not in raw
        assert source.busy == 0


async def test_aiohttps_own_refusals_are_openai_errors_too() -> None:
    service, _ = scripted()
    async with serving(service) as url, aiohttp.ClientSession() as client:
        async with client.get(f"{url}/v1/nothing") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
        async with client.get(url + PATH) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (405, "method_not_allowed")
            assert response.headers["Allow"] == "POST"


async def test_a_limit_says_when_and_how_much() -> None:
    service, source = scripted()
    limits = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0"}
    source.refusal = RateLimited("Too many.", retry_after=7, headers=limits)
    async with serving(service) as url:
        for more in ({}, {"stream": True}):
            status, body, headers = await post(url + PATH, chat(**more))
            assert (status, headers["Retry-After"]) == (429, "7")
            assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
            assert {name: headers[name] for name in limits} == limits
        assert "x-ratelimit-limit-requests" in headers["Access-Control-Expose-Headers"]


async def test_what_waited_too_long_is_a_504_with_the_reason() -> None:
    service, _ = scripted(Expired("No slot became free in time."))
    async with serving(service) as url:
        status, error = await refused(url, chat())
    assert (status, error["code"], error["message"]) == (504, "expired", "No slot became free in time.")


async def test_a_stream_that_expired_before_its_first_byte_says_so_in_its_status() -> None:
    service, source = scripted(0.05, Expired("No slot became free in time."))
    async with serving(service) as url:
        status, error = await refused(url, chat(stream=True, ttl_s=30))
        assert (status, error["code"]) == (504, "expired")
        source.script = ("Hel", 0.05, Expired("Too late for a status."))
        status, body, _ = await post(url + PATH, chat(stream=True, ttl_s=30))
        assert status == 200
        assert b"Hel" in body
        assert b"Too late for a status." in body


async def test_a_stream_that_began_in_time_is_not_held_back() -> None:
    service, source = scripted("Hello")
    gate = asyncio.Event()
    source.script = (gate, "Hello")
    async with serving(service) as url, aiohttp.ClientSession() as client:
        async with client.post(url + PATH, json=chat(stream=True, ttl_s=0.05)) as response:
            assert response.status == 200, "its time has passed, so it has a slot and reads a long prompt"
            gate.set()
            assert b"Hello" in await response.read()
