"""Answers that may be given again: to whom, for what, for how long, and how that is told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from node.errors import EngineFailed
from node.generation import Caller, Constraint, Entry, Finished, Request, Sampling, Token
from node.layers import load
from node.server.app import create_app
from node.server.recall import Recall, question
from tests.server.talk import talking
from tests.server.wire import chat, events, post, text_of
from tests.support.service import ScriptedService, running_app, scripted

PATH = "/v1/chat/completions"
ASKED = Request("a", (1, 2, 3), 50, sampling=Sampling(temperature=0, seed=7), caller=Caller("", "ann", "s1"))
END = Finished("stop", 3, 2)


def entries(*texts: str) -> tuple[Entry, ...]:
    return tuple(Entry(text, Token(number, text.encode())) for number, text in enumerate(texts))


@pytest.mark.parametrize(
    "same",
    [
        replace(ASKED, id="b"),
        replace(ASKED, level="critical", ttl_s=3.0),
        replace(ASKED, caller=Caller("", "ann", "another session")),
        replace(ASKED, sampling=Sampling(temperature=0, seed=8)),
    ],
)
def test_the_same_question(same: Request) -> None:
    assert question(ASKED, seeded=False) == question(same, seeded=False)


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, prompt=(1, 2, 4)),
        replace(ASKED, max_tokens=51),
        replace(ASKED, sampling=Sampling(temperature=0.1, seed=7)),
        replace(ASKED, stop=("x",)),
        replace(ASKED, constraint=Constraint("regex", "x")),
        replace(ASKED, logprobs=1),
        replace(ASKED, caller=Caller("", "bob", "s1")),
        replace(ASKED, caller=Caller("acme", "ann", "s1")),
    ],
)
def test_another_question_or_another_caller(other: Request) -> None:
    assert question(ASKED, seeded=False) != question(other, seeded=False)


def test_a_seed_that_was_chosen_counts_and_a_tenant_shares() -> None:
    seven, eight = (replace(ASKED, sampling=Sampling(seed=seed)) for seed in (7, 8))
    assert question(seven, seeded=True) != question(eight, seeded=True)
    assert question(seven, seeded=True) == question(replace(seven, id="b"), seeded=True)
    ann, bob = (replace(ASKED, caller=Caller("acme", user)) for user in ("ann", "bob"))
    assert question(ann, seeded=True) == question(bob, seeded=True)


def test_what_was_drawn_at_random_is_nobody_elses() -> None:
    assert question(replace(ASKED, sampling=Sampling(temperature=0.1, seed=7)), seeded=False) == b""


def test_answers_are_kept_for_a_while() -> None:
    recall = Recall(keep_s=10)
    recall.keep(b"q", entries("a"), END, 100.0)
    found = recall.find(b"q", 110.0)
    assert found is not None
    assert (found.entries, found.end, found.at) == (entries("a"), END, 100.0)
    assert recall.find(b"other", 100.0) is None
    assert recall.find(b"q", 110.1) is None
    assert len(recall) == 0


def test_answers_are_bounded_in_number_and_in_all_their_entries() -> None:
    recall = Recall(most=3, most_entries=5)
    for number in range(4):
        recall.keep(bytes([number]), entries("a"), END, float(number))
    assert [recall.find(bytes([number]), 4.0) is not None for number in range(4)] == [False, True, True, True]
    recall.keep(b"\3", entries("a", "b", "c"), END, 5.0)
    assert len(recall) == 3, "the newer one took the place of its elder"
    recall.keep(b"long", entries(*"abcd"), END, 6.0)
    assert recall.find(b"long", 6.0) is not None
    assert len(recall) == 1
    recall.keep(b"longer", entries(*"abcdef"), END, 7.0)
    assert len(recall) == 0, "one that is beyond all bounds is not kept"


def app_of(service: ScriptedService, mode: str = "ask") -> Any:
    return create_app(load(environment={}, flags={"load.cached_answers": mode}), service)


ALLOW = {"Outpost-Cached": "1"}


async def ask(url: str, headers: dict[str, str] = ALLOW, **more: Any) -> tuple[str, Any, Any]:
    status, body, answered = await post(url + PATH, chat(**({"temperature": 0} | more)), headers)
    assert status == 200, body
    told = json.loads(body)
    return told["choices"][0]["message"]["content"], told["usage"].get("outpost"), answered


async def test_an_overloaded_node_gives_it_to_those_who_allow_it() -> None:
    service, source = scripted()
    async with running_app(app_of(service)) as url:
        text, mark, first = await ask(url)
        assert mark is None
        assert "Outpost-Cached" not in first
        await ask(url)
        assert len(source.submitted) == 2, "a node that is well answers itself"
        service.admission.recalls = True
        again, mark, second = await ask(url)
        assert (again, mark) == (text, {"answer_cached": True})
        assert (second["Outpost-Degraded"], second["Outpost-Cached"]) == ("cached", "0")
        await ask(url, {})
        await ask(url, messages=[{"role": "user", "content": "Something else."}])
        assert len(source.submitted) == 4


async def test_it_is_streamed_like_any_other() -> None:
    service, source = scripted()
    async with running_app(app_of(service)) as url:
        await ask(url)
        service.admission.recalls = True
        body = chat(stream=True, stream_options={"include_usage": True}, temperature=0)
        status, told, answered = await post(url + PATH, body, ALLOW)
        chunks = events(told)
        assert (status, text_of(chunks), answered["Outpost-Degraded"]) == (200, "Hello world.", "cached")
        assert chunks[-2]["usage"]["outpost"] == {"answer_cached": True}
        assert chunks[-2]["usage"]["completion_tokens"] == 4
        async with talking(url, headers=ALLOW) as talk:
            await talk.ask("a", temperature=0)
            assert (await talk.until("accepted"))["degraded"] == ["cached"]
            assert (await talk.end("a"))["usage"]["outpost"] == {"answer_cached": True}
            assert talk.text("a") == "Hello world."
        assert len(source.submitted) == 1
        _, metrics, _ = await _get(f"{url}/metrics")
        assert b'llm_answers_recalled_total{model="scripted"} 2.0' in metrics


async def _get(url: str) -> tuple[int, bytes, Any]:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, await response.read(), response.headers


@pytest.mark.parametrize("why", ["shortened", "the operator's word", "broken off"])
async def test_what_is_not_kept(why: str) -> None:
    broken = (EngineFailed("It broke."),) if why == "broken off" else ()
    service, source = scripted("Hel", "lo", " world.", *broken)
    async with running_app(app_of(service, "never" if why == "the operator's word" else "ask")) as url:
        service.admission.most_tokens = 2 if why == "shortened" else None
        await post(url + PATH, chat(temperature=0), ALLOW)
        service.admission.most_tokens, service.admission.recalls = None, True
        await post(url + PATH, chat(temperature=0), ALLOW)
    assert len(source.submitted) == 2


async def test_a_random_answer_is_not_given_again_unless_its_seed_was_asked_for() -> None:
    service, source = scripted()
    async with running_app(app_of(service)) as url:
        service.admission.recalls = True
        for _ in range(2):
            await ask(url, temperature=0.8)
        assert len(source.submitted) == 2
        for _ in range(2):
            await ask(url, temperature=0.8, seed=7)
        assert len(source.submitted) == 3


async def test_a_header_that_makes_no_sense() -> None:
    service, _ = scripted()
    async with running_app(app_of(service)) as url:
        status, body, _ = await post(url + PATH, chat(), {"Outpost-Cached": "yes"})
        assert (status, json.loads(body)["error"]["param"]) == (400, "Outpost-Cached")
