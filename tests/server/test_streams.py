"""Coming back for an answer: over SSE, from any number, and everything that can be wrong about it."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from node.errors import Overloaded, StoreFailed
from node.layers import load
from node.server.app import STREAMS, create_app
from node.store.db import Database
from node.store.streams import StreamStore
from tests.server.wire import USER, chat, events, text_of
from tests.support.service import running_app, scripted

KEYS = ("k" * 16, "j" * 16)


class Kit:
    """An app over a store and a scripted service."""

    def __init__(self, url: str, store: StreamStore, source: Any, app: Any) -> None:
        self.url, self.store, self.source, self.app = url, store, source, app

    async def begin(self, key: str = KEYS[0], **more: Any) -> tuple[aiohttp.ClientSession, aiohttp.ClientResponse]:
        client = aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"})
        headers = {"Outpost-Resumable": "1"}
        response = await client.post(f"{self.url}/v1/chat/completions", json=chat(stream=True, **more), headers=headers)
        return client, response

    async def get(self, id: str, start: int | None = None, key: str = KEYS[0], **headers: str) -> tuple[int, bytes]:
        suffix = "" if start is None else f"?from={start}"
        headers = {"Authorization": f"Bearer {key}", **headers}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.get(f"{self.url}/v1/streams/{id}{suffix}") as response,
        ):
            return response.status, await response.read()


@pytest.fixture
async def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def kit(tmp_path: Path, gate: asyncio.Event) -> AsyncIterator[Kit]:
    database = Database(tmp_path / "node.db")
    await database.open()
    store = StreamStore(database, 1 << 24, 1000)
    service, source = scripted("one ", "two ", "thr", gate, "ee ", "four")
    settings = load(environment={}, flags={"server.api_keys": ",".join(KEYS)})
    app = create_app(settings, service, store)
    async with running_app(app) as url:
        yield Kit(url, store, source, app)
    await database.close()


async def read_until(response: aiohttp.ClientResponse, seq: int) -> list[Any]:
    chunks = []
    async for line in response.content:
        if line.startswith(b"data: {"):
            chunks.append(json.loads(line[6:]))
            if chunks[-1]["outpost"]["seq"] >= seq:
                return chunks
    return chunks


async def test_a_reader_that_left_comes_back_for_the_rest(kit: Kit, gate: asyncio.Event) -> None:
    client, response = await kit.begin()
    id = response.headers["Outpost-Stream"]
    seen = await read_until(response, 1)
    response.close()
    await client.close()
    await asyncio.sleep(0.05)
    assert kit.source.cancelled == [], "a lost client does not stop a resumable generation"
    gate.set()
    last = seen[-1]["outpost"]["seq"]
    status, body = await kit.get(id, last + 1)
    assert status == 200
    rest = events(body)
    assert text_of(seen) + text_of(rest) == "one two three four"
    numbers = [chunk["outpost"]["seq"] for chunk in rest if chunk != "[DONE]"]
    assert numbers == sorted(numbers)
    assert rest[0]["outpost"]["seq"] > last
    assert "role" not in rest[0]["choices"][0]["delta"], "the role came once, at the beginning"
    assert rest[-1] == "[DONE]"


async def test_any_number_may_be_asked_for_as_often_as_one_likes(kit: Kit, gate: asyncio.Event) -> None:
    gate.set()
    client, response = await kit.begin()
    await response.read()
    await client.close()
    id = response.headers["Outpost-Stream"]
    for start, text in ((None, "one two three four"), (0, "one two three four"), (3, "ee four"), (5, "")):
        status, body = await kit.get(id, start)
        assert status == 200
        assert text_of(events(body)) == text
        assert events(body)[-2]["choices"][0]["finish_reason"] == "stop"
    status, body = await kit.get(id, 6)
    assert status == 409
    assert "number 4" in json.loads(body)["error"]["message"]


async def test_two_readers_follow_one_generation(kit: Kit, gate: asyncio.Event) -> None:
    client, response = await kit.begin()
    id = response.headers["Outpost-Stream"]
    await read_until(response, 1)
    second = asyncio.create_task(kit.get(id, 0))
    await asyncio.sleep(0.05)
    gate.set()
    rest = await response.read()
    assert text_of(events((await second)[1])) == "one two three four"
    assert rest.endswith(b"data: [DONE]\n\n")
    await client.close()


async def test_event_ids_are_for_those_who_ask(kit: Kit, gate: asyncio.Event) -> None:
    gate.set()
    client, response = await kit.begin()
    assert b"id:" not in await response.read()
    await client.close()
    id = response.headers["Outpost-Stream"]
    _, body = await kit.get(id, 0, **{"Outpost-Event-Ids": "1"})
    assert b"id: 4\ndata: " in body
    _, body = await kit.get(id, None, **{"Last-Event-ID": "1", "Outpost-Event-Ids": "1"})
    assert text_of([json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]) == "three four"


async def test_delete_stops_it_and_what_came_stays(kit: Kit) -> None:
    client, response = await kit.begin()
    id = response.headers["Outpost-Stream"]
    await read_until(response, 1)
    async with client.delete(f"{kit.url}/v1/streams/{id}") as stopped:
        told = await stopped.json()
    assert told["stopped"] is True
    assert told["count"] >= 2
    assert kit.source.cancelled == [id]
    await response.read()
    await client.close()
    status, body = await kit.get(id, 0)
    assert status == 200
    assert b"one " in body
    assert b'"error"' in body, "an answer that was stopped never passes for a whole one"


@pytest.mark.parametrize(
    ("id", "start", "status"),
    [
        ("chatcmpl-unknown", "0", 404),
        ("no%20such%2Fid", "0", 404),
        ("x" * 65, "0", 404),
        ("chatcmpl-unknown", "-1", 400),
        ("chatcmpl-unknown", "99999999999999999999", 400),
        ("chatcmpl-unknown", "1e3", 400),
        ("chatcmpl-unknown", "", 400),
    ],
)
async def test_what_cannot_be_given_is_said(kit: Kit, id: str, start: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{kit.url}/v1/streams/{id}?from={start}") as response,
    ):
        assert response.status == status
        assert (await response.json())["error"]["message"]


async def test_another_key_is_another_owner(kit: Kit, gate: asyncio.Event) -> None:
    client, response = await kit.begin()
    id = response.headers["Outpost-Stream"]
    assert (await kit.get(id, 0, KEYS[1]))[0] == 403, "while it runs"
    gate.set()
    await response.read()
    await client.close()
    assert (await kit.get(id, 0, KEYS[1]))[0] == 403, "and after"
    assert (await kit.get(id, 0, "w" * 16))[0] == 401


async def test_what_was_evicted_is_gone_and_not_unknown(kit: Kit, gate: asyncio.Event) -> None:
    gate.set()
    client, response = await kit.begin()
    await response.read()
    await client.close()
    await StreamStore(kit.store._database, 1, 1000).prune()
    assert (await kit.get(response.headers["Outpost-Stream"], 0))[0] == 410


async def test_a_marked_retry_joins_the_running_generation(kit: Kit, gate: asyncio.Event) -> None:
    async def attempt(count: str) -> tuple[str, bytes]:
        headers = {"Authorization": f"Bearer {KEYS[0]}", "x-stainless-retry-count": count, "Outpost-Resumable": "1"}
        body = {"messages": USER, "stream": True}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{kit.url}/v1/chat/completions", json=body) as response,
        ):
            return response.headers["Outpost-Stream"], await response.read()

    first = asyncio.create_task(attempt("0"))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(attempt("1"))
    await asyncio.sleep(0.05)
    gate.set()
    assert (await first)[0] == (await second)[0]
    assert len(kit.source.submitted) == 1
    third = await attempt("0")
    assert third[0] != (await first)[0], "the same question asked again is a new one"


async def test_the_header_is_checked_and_the_setting_wins(kit: Kit) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}", "Outpost-Resumable": "yes"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{kit.url}/v1/chat/completions", json=chat()) as response,
    ):
        assert response.status == 400


async def test_what_a_dead_process_left_goes_on(kit: Kit, gate: asyncio.Event) -> None:
    """The process's death is played by forgetting everything but the store."""
    client, response = await kit.begin(seed=5, priority="interactive", ttl_s=900)
    id = response.headers["Outpost-Stream"]
    await read_until(response, 2)
    response.close()
    await client.close()
    service, source = scripted("ee ", "four")
    app = create_app(load(environment={}, flags={"server.api_keys": ",".join(KEYS)}), service, kit.store)
    async with running_app(app) as url:
        assert await app[STREAMS].resume_unfinished() == 1
        assert await app[STREAMS].resume_unfinished() >= 0, "twice is harmless"
        other = Kit(url, kit.store, source, app)
        status, body = await other.get(id, 0)
        assert status == 200
        assert text_of(events(body)) == "one two three four"
        (request,) = source.submitted
        (first,) = kit.source.submitted
        assert (request.caller, request.level) == (first.caller, "interactive")
        assert (first.ttl_s, request.ttl_s) == (900, None), "it has run, so it cannot be said that it never did"
        assert request.continued == (1, 2, 3), "the scripted source numbers its tokens from one"
        assert request.sampling.seed == 5
        assert request.id == id
    gate.set()


async def test_what_is_suspended_is_told_with_what_it_said(kit: Kit, gate: asyncio.Event) -> None:
    client, response = await kit.begin()
    await read_until(response, 2)
    (request,) = kit.app[STREAMS].suspend()
    assert request.id == response.headers["Outpost-Stream"]
    assert request.continued == (1, 2, 3)
    assert kit.app[STREAMS].suspend() == [], "once"
    response.close()
    await client.close()
    gate.set()


async def test_a_reader_with_another_text_must_begin_again(kit: Kit, gate: asyncio.Event) -> None:
    gate.set()
    client, response = await kit.begin()
    await response.read()
    id = response.headers["Outpost-Stream"]
    good = f"{zlib.crc32(b'one two '):08x}"
    for crc, status in ((good, 200), ("deadbeef", 409), ("xyz", 400), ("", 400)):
        async with client.get(f"{kit.url}/v1/streams/{id}?from=2&crc={crc}") as answered:
            assert answered.status == status, crc
            body = await answered.read()
    async with client.get(f"{kit.url}/v1/streams/{id}?from=2&crc=deadbeef") as answered:
        assert "resume from 0" in (await answered.json())["error"]["message"]
    assert body
    await client.close()


async def test_what_is_about_to_go_on_is_not_said_to_be_over(kit: Kit) -> None:
    client, response = await kit.begin()
    id = response.headers["Outpost-Stream"]
    await read_until(response, 1)
    kit.app[STREAMS]._answerer.live.clear()  # as in a new life, before it has taken it up
    async with client.get(f"{kit.url}/v1/streams/{id}?from=0") as answered:
        assert answered.status == 503
        assert answered.headers["Retry-After"] == "1"
    response.close()
    await client.close()


async def test_two_attempts_in_the_same_moment_are_one_generation(kit: Kit, gate: asyncio.Event) -> None:
    async def attempt() -> str:
        headers = {"Authorization": f"Bearer {KEYS[0]}", "Idempotency-Key": "same", "Outpost-Resumable": "1"}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{kit.url}/v1/chat/completions", json={"messages": USER, "stream": True}) as response,
        ):
            await response.read()
            return response.headers["Outpost-Stream"]

    attempts = [asyncio.create_task(attempt()) for _ in range(5)]
    await asyncio.sleep(0.1)
    gate.set()
    assert len({await one for one in attempts}) == 1
    assert len(kit.source.submitted) == 1


async def test_a_refused_resumable_request_leaves_nothing_to_go_on_with(kit: Kit) -> None:
    kit.source.refusal = Overloaded("full", retry_after=1)
    client, response = await kit.begin()
    assert response.status == 429
    await client.close()
    await asyncio.sleep(0.05)
    assert await kit.store.unfinished() == []


async def test_a_store_that_cannot_take_it_is_an_error_and_no_orphan(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_: object) -> None:
        raise StoreFailed("disk full")

    monkeypatch.setattr(kit.store, "open", full)
    client, response = await kit.begin()
    assert response.status == 500
    assert (await response.json())["error"]["code"] == "store_failed"
    await client.close()
    assert kit.source.submitted == []
