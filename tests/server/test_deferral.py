"""Requests that may wait: 202 instead of a refusal, and their answers by id."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from node.errors import EngineFailed, InvalidRequest, Overloaded, RateLimited, Unavailable
from node.server.callers import user_of
from node.server.replies import encode
from tests.support.deferring import BODY, CHAT, KEYS, WAITS, Deferring, deferring
from tests.support.hubs import until
from tests.support.service import scripted

BUSY = Overloaded("Nobody can answer.")


async def answer_of(node: Deferring, location: str, key: str = "") -> tuple[int, Any, Any]:
    """Its answer, once it is there."""
    async with asyncio.timeout(30):
        while True:
            status, body, headers = await node.send("GET", location, key=key)
            if status != 202:
                return status, body, headers
            await asyncio.sleep(0.05)


async def test_what_can_be_answered_now_is(tmp_path: Path) -> None:
    service, source = scripted()
    async with deferring(service, tmp_path) as node:
        status, body, _ = await node.ask()
        assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello world.")
        status, text, _ = await node.ask(stream=True)
        assert (status, text.count("data: "), "[DONE]" in text) == (200, 7, True)
        assert (await node.post.later.look())["waiting"] == 0  # type: ignore[union-attr]
    assert len(source.submitted) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefer", ["respond-async", "wait=5, Respond-Async", "return=minimal;x, respond-async; y=1"])
async def test_a_refusal_becomes_a_promise_that_is_kept(tmp_path: Path, stream: bool, prefer: str) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        status, body, headers = await node.ask({"Prefer": prefer}, stream=stream)
        assert status == 202
        assert headers["Location"] == f"/v1/later/{body['id']}"
        assert headers["Preference-Applied"] == "respond-async"
        assert int(headers["Retry-After"]) >= 5
        assert (body["object"], body["status"], body["reason"]) == ("later", "waiting", BUSY.message)
        status, body, headers = await node.send("GET", headers["Location"])
        assert (status, body["status"], "Retry-After" in headers) == (202, "waiting", True)
        source.refusal = None
        status, answer, headers = await answer_of(node, f"/v1/later/{body['id']}")
        assert status == 200
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"]["content"] == "Hello world."
        assert answer["usage"]["completion_tokens"] == 4
        assert headers["Outpost-Later"] == body["id"]


async def test_it_runs_in_the_background_unless_it_names_a_level(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        locations = [
            (await node.ask())[2]["Location"],
            (await node.ask({**WAITS, "Outpost-Priority": "interactive"}))[2]["Location"],
            (await node.ask(priority="standard"))[2]["Location"],
        ]
        source.refusal = None
        for location in locations:
            assert (await answer_of(node, location))[0] == 200
    assert sorted(request.level for request in source.submitted) == ["background", "interactive", "standard"]


async def test_plain_completions_wait_as_well(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        status, _, headers = await node.send(
            "POST", "/v1/completions", WAITS, body={"model": "scripted", "prompt": "x"}
        )
        assert status == 202
        source.refusal = None
        status, answer, _ = await answer_of(node, headers["Location"])
        assert (status, answer["choices"][0]["text"]) == (200, "Hello world.")


async def test_who_does_not_ask_is_refused_as_ever(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        for headers in ({}, {"Prefer": "wait=5"}, {"Prefer": "x-respond-async"}, {"Prefer": "respond-async-not"}):
            assert (await node.ask(headers))[0] == 429
        assert (await node.ask({}, priority="background"))[0] == 429
    async with deferring(service, tmp_path, outbox_later="background") as node:
        assert (await node.ask({}))[0] == 429
        assert (await node.ask({}, priority="background"))[0] == 202
    async with deferring(service, tmp_path, outbox_later="never") as node:
        status, _, headers = await node.ask()
        assert (status, "Preference-Applied" in headers) == (429, False)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (InvalidRequest("wrong", param="x"), 400),
        (RateLimited("your own limit", retry_after=3, headers={"x-ratelimit-limit-requests": "1"}), 429),
        (EngineFailed("broke"), 500),
        (Unavailable("shutting down", retry_after=5), 202),
    ],
)
async def test_only_what_passes_is_waited_for(tmp_path: Path, refusal: Any, status: int) -> None:
    service, source = scripted()
    source.refusal = refusal
    async with deferring(service, tmp_path) as node:
        assert (await node.ask())[0] == status


@pytest.mark.parametrize("stream", [False, True])
async def test_who_fails_before_the_first_word_is_waited_for_and_after_it_not(tmp_path: Path, stream: bool) -> None:
    """Peers and the cloud answer late that they cannot."""
    service, source = scripted(0.05, Unavailable("no peer is left"))
    async with deferring(service, tmp_path) as node:
        status, _, headers = await node.ask(stream=stream)
        assert status == 202
        source.script = ("Hello",)
        assert (await answer_of(node, headers["Location"]))[0] == 200
    service, source = scripted("half ", 0.05, Unavailable("gone"))
    async with deferring(service, tmp_path) as node:
        status, text, _ = await node.ask(stream=stream)
        if stream:
            assert status == 200
            assert "half" in text
            assert "gone" in text
        else:
            assert status == 202  # nobody has seen anything of it


async def test_a_key_finds_the_same_request(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    headers = {**WAITS, "Idempotency-Key": "order-7"}
    async with deferring(service, tmp_path) as node:
        first = (await node.ask(headers))[1]["id"]
        assert (await node.ask(headers))[1]["id"] == first
        assert (await node.ask({"Idempotency-Key": "order-7"}))[1]["id"] == first, (
            "also if it does not say that it may wait"
        )
        assert (await node.ask())[1]["id"] != first
        assert (await node.ask(headers, max_tokens=5))[0] == 400
        source.refusal = None
        assert (await answer_of(node, f"/v1/later/{first}"))[0] == 200
        submitted = len(source.submitted)
        status, body, told = await node.ask(headers)
        assert (status, body["object"], told["Outpost-Later"]) == (200, "chat.completion", first)
        assert len(source.submitted) - submitted <= 1  # the other one that waited, at most


async def test_only_its_caller_gets_it(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    alice, bob = KEYS
    async with deferring(service, tmp_path, server_api_keys=",".join(KEYS)) as node:
        location = (await node.ask(key=alice))[2]["Location"]
        assert (await node.send("GET", location))[0] == 401
        for method in ("GET", "DELETE"):
            assert (await node.send(method, location, key=bob))[0] == 403
        assert (await node.send("GET", location, key=alice))[0] == 202
        assert (await node.ask({**WAITS, "Idempotency-Key": "k"}, key=alice))[1]["id"] != (
            await node.ask({**WAITS, "Idempotency-Key": "k"}, key=bob)
        )[1]["id"]
        source.refusal = None
        assert (await answer_of(node, location, key=alice))[0] == 200
        assert (await node.send("GET", location, key=bob))[0] == 403
    assert {request.caller.user for request in source.submitted} <= {user_of(alice), user_of(bob)}


async def test_it_can_be_cancelled_before_while_and_after_it_runs(tmp_path: Path) -> None:
    release = asyncio.Event()
    service, source = scripted("a", release, "b")
    source.refusal = BUSY
    async with deferring(service, tmp_path, outbox_later_at_a_time=1) as node:
        first, second = [(await node.ask())[2]["Location"] for _ in range(2)]
        assert (await node.send("DELETE", second))[1]["status"] == "cancelled"
        assert (await node.send("GET", second))[0] == 410
        source.refusal = None
        await until(lambda: bool(source.submitted))
        assert (await node.send("DELETE", first))[0] == 200
        await asyncio.wait_for(source.cancel_seen.wait(), 10)
        assert (await node.send("GET", first))[0] == 410
        release.set()
        third = (await node.ask({**WAITS, "Idempotency-Key": "x"}))[0]
        assert third == 200
    assert len(source.submitted) == 2


@pytest.mark.parametrize("id", ["later-", "later-zz", "x" * 300, "later-0190b3f0-0000-7000-8000-000000000000"])
async def test_unknown_ids(tmp_path: Path, id: str) -> None:
    service, _ = scripted()
    async with deferring(service, tmp_path) as node:
        assert (await node.send("GET", f"/v1/later/{id}"))[0] == 404
        assert (await node.send("DELETE", f"/v1/later/{id}"))[0] == 404
    async with deferring(service, tmp_path, outbox_later="never") as node:
        assert (await node.send("GET", f"/v1/later/{id}"))[0] == 404


async def test_it_expires_with_its_time_to_live(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    async with deferring(service, tmp_path) as node:
        location = (await node.ask({**WAITS, "Outpost-TTL": "0.4"}))[2]["Location"]
        status, body, _ = await answer_of(node, location)
        assert (status, body["error"]["code"]) == (410, "evicted")


async def test_callbacks_need_leave(tmp_path: Path) -> None:
    service, source = scripted()
    source.refusal = BUSY
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-the-caller")  # a test may
    wanted = {"Outpost-Callback": "https://a.example/hook"}
    async with deferring(service, tmp_path) as node:
        assert (await node.ask({**WAITS, **wanted}))[0] == 403
    given = {"outbox_callbacks": "https://a.example/", "outbox_callback_secret_file": str(secret)}
    async with deferring(service, tmp_path, **given) as node:
        assert (await node.ask({**WAITS, **wanted}))[0] == 202
        assert (await node.ask({**WAITS, "Outpost-Callback": "https://b.example/"}))[0] == 403
        assert (await node.ask(wanted))[0] == 400


async def test_a_full_outbox_refuses_clearly(tmp_path: Path) -> None:
    service, source = scripted(context=1 << 22)
    source.refusal = BUSY
    async with deferring(service, tmp_path, outbox_later_waiting=2, outbox_max_bytes=1 << 20) as node:
        big = [{"role": "user", "content": "x" * (1 << 20)}]
        async with node.session.post(
            node.url + CHAT, data=io.BytesIO(encode({**BODY, "messages": big})), headers=WAITS
        ) as r:
            status, body = r.status, await r.json()
        assert (status, body["error"]["code"]) == (503, "outbox_full")
        assert "outbox.max_bytes" in body["error"]["message"]
        assert [(await node.ask())[0] for _ in range(3)] == [202, 202, 429]


async def test_nothing_that_was_asked_or_answered_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service, source = scripted("canary-answer")
    source.refusal = BUSY
    with caplog.at_level(logging.DEBUG, "node"):
        async with deferring(service, tmp_path) as node:
            location = (await node.ask())[2]["Location"]
            source.refusal = None
            assert (await answer_of(node, location))[0] == 200
            await node.send("DELETE", location)
    assert "canary" not in "".join(str(record.__dict__) for record in caplog.records if record.name.startswith("node"))
    for name in ("outbox.db", "outbox.db-wal"):
        file = tmp_path / name
        if file.exists():  # a test may
            assert b"canary" not in file.read_bytes(), "what is cancelled is overwritten"
