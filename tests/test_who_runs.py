"""Levels, limits and pauses on a whole node, over HTTP, with a real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from node.admission.ladder import Rung
from node.client import Client, Done, TextDelta
from node.errors import Expired, Overloaded
from node.runtime import Node
from tests.server.wire import chat, post, until

Start = Callable[..., Awaitable[Node]]
PATIENT = {"load_gap_ms": 60_000, "load_wait_ms": 600_000}  # however busy this machine is, nothing is given up
GREEDY = {"temperature": 0.0, "ignore_eos": True}
QUESTION = "How is bread made?"
URGENT = "Is there anybody at the harbour who can read the tide before the ferry leaves in ten minutes, please? " * 6


async def ask(
    client: Client, question: str, max_tokens: int, heard: asyncio.Semaphore | None = None, **more: Any
) -> str:
    """The text of an answer; `heard` is released at every piece of it."""
    text = ""
    messages = [{"role": "user", "content": question}]
    async with aclosing(client.chat(messages, max_tokens=max_tokens, **GREEDY, **more)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                text += event.text
                if heard is not None:
                    heard.release()
            assert not isinstance(event, Done) or event.finish_reason == "length"
    return text


async def undisturbed_and_paused(node: Node, tokens: int) -> tuple[str, str]:
    """A background answer that has the only slot, alone and paused twice by critical ones."""
    async with Client(node.url) as client:
        undisturbed = await ask(client, QUESTION, tokens, priority="background")
        heard = asyncio.Semaphore(0)
        running = asyncio.create_task(ask(client, QUESTION, tokens, heard, priority="background"))
        for _ in range(2):
            for _ in range(tokens // 4):
                await heard.acquire()
            await ask(client, URGENT, 4, priority="critical")
        assert node.status()["queue"]["levels"]["background"]["parked"] == 2
        return undisturbed, await running


async def test_a_pause_leaves_no_trace(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", engine_slots=1, **PATIENT)
    undisturbed, paused = await undisturbed_and_paused(node, 4000)
    assert paused == undisturbed
    assert node.status()["queue"]["parked"] == 0


@pytest.mark.model
@pytest.mark.parametrize("cells", [0, 256], ids=["kept", "read again"])
async def test_a_paused_greedy_answer_is_the_undisturbed_one(
    start_node: Start, weights: Path, cells: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the cache is too small to keep what was paused beside what runs."""
    room = {"engine_context": cells, "engine_kv_tokens": cells} if cells else {}
    # One thread: with more, each pause of one on a busy machine holds up the others.
    # Token by token: an answer that was given before comes in a few pieces, too soon to be paused.
    node = await start_node(engine_slots=1, engine_threads=1, engine_drafts="off", **room, **PATIENT)
    with caplog.at_level("INFO", "node.engine.llama"):
        undisturbed, paused = await undisturbed_and_paused(node, 200)
    assert paused == undisturbed
    assert ("preempted to make room in the cache" in caplog.text) == bool(cells)


async def test_a_request_that_waits_too_long_is_told_so(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", engine_slots=1)
    async with Client(node.url) as client:
        heard = asyncio.Semaphore(0)
        running = asyncio.create_task(ask(client, "long", 8000, heard))
        await heard.acquire()
        with pytest.raises(Expired, match=r"0\.05 s"):
            await ask(client, "short", 5, ttl_s=0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert node.status()["queue"]["levels"]["standard"]["expired"] == 1


async def test_a_client_that_leaves_while_it_waits_is_gone_at_once(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", engine_slots=1)
    async with Client(node.url) as client:
        heard = asyncio.Semaphore(0)
        running = asyncio.create_task(ask(client, "long", 8000, heard))
        await heard.acquire()
        waiting = asyncio.create_task(ask(client, "short", 5))
        await until(lambda: node.load().waiting == 1)
        waiting.cancel()
        await until(lambda: node.load().waiting == 0)
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


QUOTAS = """
[tenants.acme.keys.alice]
key = "the-key-of-alice-0123"
ceiling = "standard"
limits = { output_tokens_per_minute = 100, burst = 1.0 }
"""


async def test_a_keys_limits_hold_and_are_told(start_node: Start, tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text(QUOTAS)
    node = await start_node(engine_kind="echo", limits_quota_file=tmp_path / "quotas.toml")
    url, key = f"{node.url}/v1/chat/completions", {"Authorization": "Bearer the-key-of-alice-0123"}
    body = chat(max_tokens=60, ignore_eos=True, priority="critical")
    status, _, headers = await post(url, body, key)
    assert (status, headers["Outpost-Priority"]) == (200, "standard")
    assert headers["x-ratelimit-limit-tokens"] == "100"
    status, told, headers = await post(url, body, key)
    assert (status, json.loads(told)["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["Retry-After"]) >= 1
    assert headers["x-ratelimit-remaining-tokens"] == "40"
    assert node.status()["limits"]["limited"] == 1
    async with Client(node.url, "the-key-of-alice-0123") as client:
        with pytest.raises(Overloaded, match="output tokens per minute"):
            await ask(client, "more", 60)
        assert len(await ask(client, "less", 20)) == 20


def climb(node: Node, rung: Rung) -> None:
    """Put the node on a rung, for the ten seconds at least that it stays there."""
    governor = node._serving.reception._governor  # type: ignore[union-attr]
    assert governor is not None
    governor._ladder.rung = rung


async def test_an_overloaded_node_gives_less_rung_by_rung_and_says_so(start_node: Start) -> None:
    node = await start_node(engine_kind="echo", load_cached_answers="ask", **PATIENT)
    url, allow = f"{node.url}/v1/chat/completions", {"Outpost-Cached": "1"}

    async def answered(level: str, **headers: str) -> tuple[int, str | None, int]:
        status, body, told = await post(
            url, chat(priority=level, ignore_eos=True, max_tokens=400, temperature=0), {**allow, **headers}
        )
        made = json.loads(body)["usage"]["completion_tokens"] if status == 200 else int(told["Retry-After"])
        return status, told.get("Outpost-Degraded"), made

    assert await answered("standard") == (200, None, 400)
    climb(node, "shorten")
    assert await answered("interactive") == (200, None, 400)
    assert await answered("standard") == (200, "shorten", 256)
    assert await answered("background") == (200, "shorten", 128)
    climb(node, "shed")
    assert (await answered("background"))[0] == 429
    assert await answered("standard") == (200, "shorten", 256)
    climb(node, "cached")
    assert await answered("interactive") == (200, "cached", 400)
    assert await answered("standard") == (200, "shorten, cached", 400), "the whole one is better than a new short one"
    assert await answered("standard", **{"Outpost-Cached": "0"}) == (200, "shorten", 256)
    climb(node, "refuse")
    assert await answered("critical", **{"Outpost-Cached": "0"}) == (200, None, 400)
    status, _, retry_after = await answered("interactive", **{"Outpost-Cached": "0"})
    assert (status, 1 <= retry_after <= 120) == (429, True)
    assert node.status()["queue"]["levels"]["background"]["refused"] == 1
