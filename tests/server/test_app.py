"""What every response has, whatever became of the request."""

import logging

import aiohttp
import pytest

from node import log
from tests.server.wire import chat, open_post, post
from tests.support.service import scripted, serving

PATHS = [("GET", "/health/live"), ("GET", "/v1/models"), ("GET", "/nothing"), ("PUT", "/v1/models"), ("OPTIONS", "/x")]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_every_response_has_an_id_and_cors_headers(method: str, path: str) -> None:
    service, _ = scripted()
    async with serving(service) as url, aiohttp.ClientSession() as client:
        for _ in range(2):
            async with client.request(method, url + path) as response:
                assert len(response.headers["x-request-id"]) == 32
                assert response.headers["Access-Control-Allow-Origin"] == "*"
                assert "x-request-id" in response.headers["Access-Control-Expose-Headers"]
                assert response.headers["Server"] == "outpost"


@pytest.mark.parametrize("streaming", [True, False])
async def test_answers_have_them_too(streaming: bool) -> None:
    service, _ = scripted()
    async with serving(service) as url:
        _, _, headers = await post(f"{url}/v1/chat/completions", chat(stream=streaming), {"x-request-id": "my-id.1:2"})
        assert headers["x-request-id"] == "my-id.1:2"
        assert headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize("sent", ["", "with space", "x" * 129, "ümlaut", "a\tb"])
async def test_an_insane_id_is_replaced(sent: str) -> None:
    service, _ = scripted()
    async with serving(service) as url:
        _, _, headers = await post(f"{url}/v1/chat/completions", chat(), {"x-request-id": sent})
        assert headers["x-request-id"] != sent
        assert len(headers["x-request-id"]) == 32


class _Ids(logging.Handler):
    """Keeps the request id that each record of the server would be written with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), log.request_id.get()))


async def test_a_generation_logs_one_line_at_open_and_close_with_the_id() -> None:
    service, _ = scripted()
    ids, logger = _Ids(), logging.getLogger("node.server")
    logger.addHandler(ids)
    logger.setLevel(logging.INFO)
    try:
        async with serving(service) as url:
            await post(f"{url}/v1/chat/completions", chat(stream=True), {"x-request-id": "abc"})
    finally:
        logger.removeHandler(ids)
        logger.setLevel(logging.NOTSET)
    assert ids.seen == [("generation opened", "abc"), ("generation closed", "abc")]


async def test_head_is_get_without_a_body() -> None:
    service, _ = scripted()
    async with serving(service) as url, aiohttp.ClientSession() as client:
        for path in ("/v1/models", "/health/ready", "/"):
            async with client.head(url + path) as response:
                assert response.status == 200
                assert await response.read() == b""


async def test_a_connection_is_kept_for_the_next_request() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        reader, writer = await open_post(url, "/v1/chat/completions", chat(stream=True))
        await reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
