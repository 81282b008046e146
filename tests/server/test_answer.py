"""From submission to the last byte: nobody's generation outlives its readers, and retries join."""

import asyncio
import json
from typing import Any

import pytest

from node.errors import EngineFailed, Overloaded
from tests.server.wire import chat, events, open_post, post, refused, stream, text_of, until
from tests.support.service import ScriptedService, scripted, serving

PATH = "/v1/chat/completions"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_goes_away_frees_its_slot_while_generating(streaming: bool) -> None:
    gate = asyncio.Event()
    service, source = scripted("a", gate)
    async with serving(service) as url:
        _, writer = await open_post(url, PATH, chat(stream=streaming))
        await until(lambda: source.played == 1)
        writer.close()
        await until(lambda: source.busy == 0)
        assert source.cancelled == [source.submitted[0].id]


@pytest.mark.parametrize("streaming", [True, False])
async def test_and_during_prefill(streaming: bool) -> None:
    service, source = scripted(asyncio.Event(), "never")
    async with serving(service) as url:
        _, writer = await open_post(url, PATH, chat(stream=streaming))
        await until(lambda: source.busy == 1)
        writer.close()
        await until(lambda: source.busy == 0)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_ghost_in_the_queue_never_runs(streaming: bool) -> None:
    gate = asyncio.Event()
    service, source = scripted(gate, "a", slots=1)
    async with serving(service) as url:
        first = asyncio.create_task(stream(url))
        await until(lambda: source.busy == 1)
        _, writer = await open_post(url, PATH, chat(stream=streaming))
        await until(lambda: source.busy == 2)
        writer.close()
        await until(lambda: source.busy == 1)
        gate.set()
        assert text_of(await first) == "a"
        assert source.played == 1


async def test_a_failure_after_the_first_byte_is_an_event_and_closes() -> None:
    service, _ = scripted("par", "tial", EngineFailed("The engine broke."))
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, chat(stream=True))
        raw = await asyncio.wait_for(reader.read(), 30)  # to the end of the connection: it was closed
        writer.close()
        assert raw.count(b'"error"') == 1
        assert b'data: {"error":{"message":"The engine broke."' in raw
        assert b"[DONE]" not in raw
        assert b'finish_reason":"stop"' not in raw


async def test_a_failure_of_a_whole_answer_is_a_status() -> None:
    service, _ = scripted("par", EngineFailed("The engine broke."))
    async with serving(service) as url:
        status, error = await refused(url, chat())
        assert (status, error["code"]) == (500, "engine_failed")


@pytest.mark.parametrize("streaming", [True, False])
async def test_what_the_node_cut_short_never_passes_for_whole(streaming: bool) -> None:
    gate = asyncio.Event()
    service, source = scripted("a", gate)
    async with serving(service) as url:
        asked = asyncio.create_task(post(url + PATH, chat(stream=streaming)))
        await until(lambda: source.played == 1)
        source.cancel(source.submitted[0].id)
        status, body, _ = await asked
        assert b'"code":"unavailable"' in body
        assert status == (200 if streaming else 503)


async def test_usage_tells_the_warm_prefix() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        *_, usage, done = await stream(url, stream_options={"include_usage": True})
        assert done == "[DONE]"
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        _, body, _ = await post(url + PATH, chat())
        assert json.loads(body)["usage"] == usage["usage"]


async def test_a_retry_with_its_key_joins_the_running_generation() -> None:
    gate = asyncio.Event()
    service, source = scripted("one", gate, " two")
    key = {"Idempotency-Key": "k"}
    async with serving(service) as url:
        first = asyncio.create_task(post(url + PATH, chat(stream=True), key))
        await until(lambda: source.played == 1)
        second = asyncio.create_task(post(url + PATH, chat(stream=True), key))
        await asyncio.sleep(0.05)
        gate.set()
        bodies = [events((await asked)[1]) for asked in (first, second)]
        assert len(source.submitted) == 1
        assert [text_of(chunks) for chunks in bodies] == ["one two", "one two"]
        assert bodies[0][0]["id"] == bodies[1][0]["id"]
        assert text_of(events((await post(url + PATH, chat(stream=True), key))[1])) == "one two"
        assert len(source.submitted) == 1


async def test_one_reader_leaving_does_not_take_the_answer_from_the_other() -> None:
    gate = asyncio.Event()
    service, source = scripted("a", gate, "b")
    async with serving(service) as url:
        body = chat(stream=True)
        _, writer = await open_post(url, PATH, body, "Idempotency-Key: k")
        await until(lambda: source.played == 1)
        second = asyncio.create_task(post(url + PATH, body, {"Idempotency-Key": "k"}))
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        gate.set()
        assert text_of(events((await second)[1])) == "ab"
        assert source.cancelled == []


async def test_a_broken_attempt_is_not_replayed() -> None:
    service, source = scripted(EngineFailed("The engine broke."))
    async with serving(service) as url:
        key = {"Idempotency-Key": "k"}
        assert (await post(url + PATH, chat(), key))[0] == 500
        source.script = ("fine",)
        assert (await post(url + PATH, chat(), key))[0] == 200
        assert (await post(url + PATH, chat(seed=1), key))[0] == 400


async def test_a_refused_attempt_is_not_kept() -> None:
    service, source = scripted()
    async with serving(service) as url:
        key = {"Idempotency-Key": "k"}
        source.refusal = Overloaded("Full.", retry_after=3)
        assert (await post(url + PATH, chat(), key))[0] == 429
        source.refusal = None
        assert (await post(url + PATH, chat(), key))[0] == 200


async def _served(service: ScriptedService, **body: Any) -> list[Any]:
    async with serving(service) as url:
        return await stream(url, **body)


async def test_a_writer_that_lags_gets_pieces_in_one() -> None:
    service, _ = scripted(*["x"] * 500)
    assert text_of(await _served(service)) == "x" * 500
