import asyncio
import gc
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trustme
from aiohttp import web

from node import errors
from node.client import BrokenStream, Client, ClientError, Done, TextDelta, Unreachable, Usage, tls_of, url_of
from node.settings import Server

USER = [{"role": "user", "content": "Hi"}]
FIRST = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
LAST = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
END = b"data: [DONE]\n\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def text(content: str) -> bytes:
    chunk = {"id": "c1", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@asynccontextmanager
async def serving(handler: Handler, **site: object) -> AsyncIterator[str]:
    """A real server whose every path is `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, **site).start()  # type: ignore[arg-type]
    try:
        yield f"{'https' if site else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def script(*steps: bytes | float, abort: bool = False) -> Handler:
    """A stream of bytes and pauses."""

    async def handler(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await response.write(step)
        if abort and request.transport:
            request.transport.abort()
        return response

    return handler


def refuse(status: int, body: object, headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return web.Response(status=status, body=data, headers=headers)

    return handler


async def collect(client: Client, seen: list[TextDelta | Done] | None = None, **more: object) -> list[TextDelta | Done]:
    seen = [] if seen is None else seen
    async with aclosing(client.chat(USER, **more)) as events:  # type: ignore[arg-type]
        async for event in events:
            seen.append(event)
    return seen


def said(events: list[TextDelta | Done]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_an_answer_streams_with_its_figures() -> None:
    stream = [FIRST, b": ka\n", text("Zażółć "), 0.05, text("🎈"), LAST, USAGE, END]
    async with serving(script(*stream)) as url, Client(url) as client:
        events = await collect(client)
    assert said(events) == "Zażółć 🎈"
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.finish_reason, done.usage, done.model, done.id) == ("stop", Usage(3, 2, 0), "m", "c1")
    assert done.ttft_s is not None
    assert 0 < done.ttft_s < done.total_s
    assert done.tokens_per_second is not None
    assert 0 < done.tokens_per_second < 25


async def test_bytes_cut_anywhere_give_the_same_answer() -> None:
    whole = b": ka\r\n" + FIRST + text("Zażółć ") + b": ka\n" + text("🎈") + LAST + USAGE + END
    async with serving(script(*(bytes([byte]) for byte in whole))) as url, Client(url) as client:
        events = await collect(client)
    assert said(events) == "Zażółć 🎈"
    assert isinstance(events[-1], Done)


async def test_the_request_carries_what_was_asked() -> None:
    bodies: list[dict[str, object]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.path == "/v1/chat/completions"
        assert request.headers["Authorization"] == "Bearer secret"
        bodies.append(await request.json())
        return await script(LAST, END)(request)

    async with serving(handler) as url:
        for base in (url, url + "/", url + "/v1", url + "/v1/"):
            async with Client(base, "secret") as client:
                await collect(client, max_tokens=5, temperature=0.0, seed=1, stop=["x"])
                await collect(client)
    common = {"messages": USER, "stream": True, "stream_options": {"include_usage": True}}
    assert bodies == [common | {"max_tokens": 5, "temperature": 0.0, "seed": 1, "stop": ["x"]}, common] * 4


async def test_a_connection_is_used_again() -> None:
    peers = set()

    async def handler(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport.get_extra_info("peername"))  # type: ignore[union-attr]
        return await script(text("a"), LAST, END)(request)

    async with serving(handler) as url, Client(url) as client:
        for _ in range(4):
            await collect(client)
    assert len(peers) == 1


async def test_an_error_in_mid_stream_leaves_the_text_before_it() -> None:
    error = b'data: {"error":{"message":"out of memory","type":"server_error","param":null,"code":"engine_failed"}}\n\n'
    seen: list[TextDelta | Done] = []
    async with serving(script(FIRST, text("par"), text("tial"), error)) as url, Client(url) as client:
        with pytest.raises(errors.EngineFailed, match="out of memory"):
            await collect(client, seen)
    assert said(seen) == "partial"
    assert not any(isinstance(event, Done) for event in seen)


@pytest.mark.parametrize(
    ("handler", "match"),
    [
        pytest.param(script(text("a")), "before the answer was complete", id="clean end without [DONE]"),
        pytest.param(script(text("a"), abort=True), "broke", id="connection reset"),
        pytest.param(script(text("a"), END), "without saying why", id="no finish reason"),
        pytest.param(script(text("a"), b"data: {oops\n\n"), "not a chat chunk", id="broken JSON"),
        pytest.param(script(text("a"), b"data: " + b"x" * (2 << 20)), "more than", id="a line over the limit"),
    ],
)
async def test_a_broken_stream_says_so(handler: Handler, match: str) -> None:
    seen: list[TextDelta | Done] = []
    async with serving(handler) as url, Client(url) as client:
        with pytest.raises(BrokenStream, match=match):
            await collect(client, seen)
    assert said(seen) == "a"


async def test_silence_ends_and_keepalives_count() -> None:
    ticks = [step for _ in range(6) for step in (b": ka\n", 0.1)]
    async with serving(script(*ticks, text("a"), LAST, END)) as url, Client(url, silence_s=0.4) as client:
        assert said(await collect(client)) == "a"
    async with serving(script(text("a"), 5.0)) as url, Client(url, silence_s=0.2) as client:
        with pytest.raises(BrokenStream, match=r"silent for 0\.2 seconds"):
            await collect(client)


@pytest.mark.parametrize("how", ["aclose", "break", "cancel"])
async def test_leaving_early_closes_the_connection(how: str) -> None:
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await script(text("a"), 30.0)(request)
        except asyncio.CancelledError:
            gone.set()
            raise

    async with serving(handler) as url, Client(url) as client:
        if how == "cancel":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await collect(client)
        elif how == "aclose":
            async with aclosing(client.chat(USER)) as events:
                await anext(events)
        else:
            async for _ in client.chat(USER):
                break
            gc.collect()
        await asyncio.wait_for(gone.wait(), 20)


async def test_a_refusal_becomes_its_class() -> None:
    body = {"error": {"message": "The queue is full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}}
    async with serving(refuse(429, body, {"Retry-After": "7"})) as url, Client(url) as client:
        with pytest.raises(errors.Overloaded, match="queue is full") as caught:
            await collect(client)
    assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("status", "body"),
    [(502, b"<html>\x1b[31mbad gateway"), (500, b""), (404, b"\xff\xfe"), (400, b'{"error":"text"}'), (307, b"")],
)
async def test_a_refusal_without_openai_json_is_told(status: int, body: bytes) -> None:
    async with serving(refuse(status, body)) as url, Client(url) as client:
        with pytest.raises(ClientError, match=f"answered {status}") as caught:
            await collect(client)
    assert "\x1b" not in caught.value.message


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with Client(url) as client:
        for call in (client.health, client.models, lambda: collect(client)):
            with pytest.raises(Unreachable, match=f"no node answers at {url}") as caught:
                await call()
    assert "outpost serve" in (caught.value.hint or "")


async def test_a_full_backlog_does_not_hold_the_client() -> None:
    with socket.socket() as closed:  # listens, never accepts: the handshake succeeds and silence follows
        closed.bind(("127.0.0.1", 0))
        closed.listen()
        started = time.monotonic()
        async with Client(f"http://127.0.0.1:{closed.getsockname()[1]}", silence_s=0.2) as client:
            with pytest.raises(BrokenStream, match="silent"):
                await client.health()
    assert time.monotonic() - started < 2


async def test_not_http_at_all() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server, Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(BrokenStream):
            await client.health()


@pytest.mark.parametrize("url", ["", "8080", "localhost:8080", "ftp://x", "http://", "http://[::1", "http://h:99999"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ClientError, match="is not"):
        Client(url)


def test_a_key_that_cannot_be_sent() -> None:
    with pytest.raises(ClientError, match="API key"):
        Client("http://h", "a\r\nX: b")


async def test_a_lone_surrogate_is_refused_before_it_is_sent() -> None:
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(errors.InvalidRequest, match="surrogate"):
            await collect(client, user="\ud83d")


async def test_several_answers_at_once_are_not_mixed() -> None:
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(errors.InvalidRequest, match="one answer"):
            await collect(client, n=2)


async def test_use_outside_the_context_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await Client("http://127.0.0.1:1").health()


async def test_models() -> None:
    listing = {"object": "list", "data": [{"id": "a", "object": "model", "created": 1}, {"id": "b"}]}
    async with serving(refuse(200, listing)) as url, Client(url) as client:
        assert await client.models() == ["a", "b"]
    async with serving(refuse(200, {"hello": 1})) as url, Client(url) as client:
        with pytest.raises(BrokenStream, match="does not list models"):
            await client.models()


async def test_a_body_over_its_limit_is_not_read_to_the_end() -> None:
    async with serving(refuse(200, b"x" * (5 << 20))) as url, Client(url) as client:
        with pytest.raises(BrokenStream, match="more than"):
            await client.models()


async def test_status() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.path == "/v1/status"
        return web.json_response({"queue": {"running": 1}})

    async with serving(handler) as url, Client(url) as client:
        assert await client.status() == {"queue": {"running": 1}}
    for body in ("[]", '{"queue": 1}', "no"):
        async with serving(script_body(body)) as url, Client(url) as client:
            with pytest.raises(ClientError, match="not a node"):
                await client.status()


def script_body(body: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    return handler


async def test_health() -> None:
    async with serving(refuse(200, {"status": "ready"})) as url, Client(url) as client:
        health = await client.health()
        assert (health.ready, health.status, health.body) == (True, 200, {"status": "ready"})
    async with serving(refuse(503, {"status": "loading"})) as url, Client(url) as client:
        assert (await client.health()).ready is False
    async with serving(refuse(200, b"<html>")) as url, Client(url) as client:
        with pytest.raises(ClientError, match="is not a node"):
            await client.health()


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (Server(), "http://127.0.0.1:8080"),
        (Server(host="0.0.0.0", port=1), "http://127.0.0.1:1"),
        (Server(host="::"), "http://[::1]:8080"),
        (Server(host="10.0.0.7", tls_certificate="c", tls_key="k"), "https://10.0.0.7:8080"),
    ],
)
def test_url_of_the_own_node(server: Server, url: str) -> None:
    assert url_of(server) == url


async def test_tls_with_the_nodes_own_certificate(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("kiosk.example")
    file = tmp_path / "node.pem"
    file.write_bytes(certificate.cert_chain_pems[0].bytes())
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(theirs)
    own = tls_of(Server(tls_certificate=str(file), tls_key="k"))
    async with serving(refuse(200, {}), ssl_context=theirs) as url:
        async with Client(url, tls=own) as client:
            assert (await client.health()).ready
        async with Client(url) as client:
            with pytest.raises(Unreachable, match="certificate"):
                await client.health()


def test_tls_without_a_certificate() -> None:
    assert tls_of(Server()) is None
    with pytest.raises(ClientError, match="tls_certificate"):
        tls_of(Server(tls_certificate="/nonexistent.pem", tls_key="k"))
