"""The stream itself: keepalives, and readers that are slow, gone or stuck."""

import asyncio
import contextlib

import pytest

from node.server import paced
from tests.server.wire import chat, events, open_post, post, stream, text_of, until
from tests.support.service import running, scripted, serving

PATH = "/v1/chat/completions"


async def test_silence_is_filled_with_comments_of_one_line() -> None:
    service, _ = scripted(0.45, "a", 0.25, "b")
    async with serving(service, keepalive_s=0.1) as url:
        _, body, _ = await post(url + PATH, chat(stream=True))
        assert 3 <= body.count(b": ka\n") <= 8
        assert b": ka\n\n" not in body
        assert text_of(events(body)) == "ab"


async def test_text_that_is_held_back_is_silence_too() -> None:
    service, _ = scripted(*["E", 0.04] * 10)
    async with serving(service, keepalive_s=0.1) as url:
        _, body, _ = await post(url + PATH, chat(stream=True, stop=["E" * 20]))
        assert body.count(b": ka\n") >= 2
        assert text_of(events(body)) == "E" * 10


async def test_a_slow_reader_costs_bounded_memory_and_slows_nobody() -> None:
    """Four readers that take nothing of ten megabytes each: what waits for them is kept once, in their sessions."""
    service, source = scripted(*["y" * 10_000] * 1000, slots=8)
    async with running(service) as (url, runner):
        slow = [await open_post(url, PATH, chat(stream=True)) for _ in range(4)]
        await until(lambda: source.played == 4000)  # the source ran at its own pace
        assert runner.server is not None
        buffered = [connection.transport.get_write_buffer_size() for connection in runner.server.connections]
        assert len(buffered) == 4
        assert max(buffered) < 256 << 10
        source.script = ("quick",)
        assert text_of(await asyncio.wait_for(stream(url), 30)) == "quick"
        for _, writer in slow:
            writer.close()


async def test_a_slow_reader_gets_everything_in_the_end() -> None:
    service, source = scripted(*["z" * 500] * 4000)
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, chat(stream=True), "Connection: close")
        await until(lambda: source.played == 4000)
        raw = await reader.read()
        writer.close()
        assert raw.count(b"z") >= 2_000_000
        assert raw.count(b"data: ") < 1500  # what was missed came in few large pieces
        assert b"data: [DONE]\n\n" in raw


async def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "STALL_S", 0.2)
    service, source = scripted(*["z" * 10_000] * 2000, 60.0, slots=1)
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, chat(stream=True))
        await asyncio.wait_for(source.cancel_seen.wait(), 30)
        received = b""
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(1 << 20):
                received += more
        writer.close()
        assert b"[DONE]" not in received


async def test_the_headers_and_the_role_go_out_before_the_first_token() -> None:
    gate = asyncio.Event()
    service, _ = scripted(gate, "a")
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, chat(stream=True))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert b"content-type: text/event-stream\r\n" in head.lower()
        first = await asyncio.wait_for(reader.readuntil(b"\n\n"), 30)
        assert b'"delta":{"role":"assistant","content":""}' in first
        gate.set()
        writer.close()
