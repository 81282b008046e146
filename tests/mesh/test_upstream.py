"""The cloud as an upstream: what it may be asked, what it is sent, and everything that it may answer instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from node.errors import Filtered, NodeError, Overloaded, SettingsError, UpstreamFailed
from node.generation import Asked, Constraint, Event, Failed, Finished, Request, Started, Token
from node.mesh.record import Record
from node.mesh.upstream import Cloud, api_key
from node.server.calls import ArgumentsDelta, CallStart, ToolCallParser
from node.settings import Cloud as CloudSettings
from tests.support.service import ByteModel, running_app

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "I am ann@example.com"}], "max_tokens": 40}
REQUEST = Request("r", (1, 2, 3), 40, asked=Asked(json.dumps(BODY).encode()))
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SEEN: web.AppKey[list[Any]] = web.AppKey("seen", list)


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def streams(
    *pieces: bytes | float | None, status: int = 200, kind: str = "text/event-stream", **headers: str
) -> Handler:
    """A cloud that sends bytes, waits so many seconds, or (None) drops the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        request.app[SEEN].append((await request.json(), request.headers))
        response = web.StreamResponse(status=status, headers={"Content-Type": kind, **headers})
        await response.prepare(request)
        for piece in pieces:
            if piece is None:
                assert request.transport is not None
                request.transport.abort()
            elif isinstance(piece, bytes):
                await response.write(piece)
            else:
                await asyncio.sleep(piece)
        return response

    return handler


@asynccontextmanager
async def cloud(
    handler: Handler, key: str = "sk-secret", models: int = 200, **settings: Any
) -> AsyncIterator[tuple[Cloud, list[Any]]]:
    async def listed(request: web.Request) -> web.Response:
        return web.Response(status=models)

    app = web.Application()
    app[SEEN] = []
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/v1/models", listed)
    async with running_app(app) as url:
        upstream = Cloud(CloudSettings(url=f"{url}/v1/", **{"policy": "always", **settings}), ByteModel(), key)
        await upstream.open()
        try:
            yield upstream, app[SEEN]
        finally:
            await upstream.close()


async def hear(upstream: Cloud, request: Request = REQUEST) -> list[Event]:
    heard: list[Event] = []
    over = asyncio.Event()

    def sink(event: Event) -> None:
        heard.append(event)
        if isinstance(event, Finished | Failed):
            over.set()

    upstream.source().submit(request, sink)
    async with asyncio.timeout(20):
        await over.wait()
    return heard


def text(heard: list[Event]) -> str:
    return b"".join(event.piece for event in heard if isinstance(event, Token)).decode()


async def test_its_text_comes_back_as_own_tokens() -> None:
    handler = streams(chunk(role="assistant"), b": ka\n", chunk("Hé"), chunk("llo"), chunk(finish="stop"))
    async with cloud(handler, model="big") as (upstream, seen):
        heard = await hear(upstream)
    assert heard[0] == Started()
    assert text(heard) == "Héllo"
    assert heard[-1] == Finished("stop", 3, 6)
    ((body, headers),) = seen
    assert body == {**BODY, "model": "big", "stream": True}
    assert headers["Authorization"] == "Bearer sk-secret"
    assert upstream.name == "cloud/127.0.0.1"


async def test_what_says_nothing_may_be_left_out() -> None:
    """As Azure's filter results, usage and comments, with lines of any kind, cut anywhere."""
    raw = (
        b'\xef\xbb\xbfdata: {"choices": [], "prompt_filter_results": []}\r\n\r\n: hello\r\n\r\n'
        + chunk("H\u00e9").replace(b"\n", b"\r\n")
        + b'data: {"choices": [{"index": 0, "finish_reason": null, "content_filter_offsets": {}}]}\n\n'
        + b'event: x\nid: 7\ndata: {"choices": [{"index": 0,\ndata:  "delta": {"content": "y"}}]}\n\n'
        + b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\r\r'
    )
    async with cloud(streams(*(raw[at : at + 1] for at in range(len(raw))))) as (upstream, _):
        heard = await hear(upstream)
    assert text(heard) == "H\u00e9y"
    assert heard[-1] == Finished("stop", 3, 4)


async def test_how_often_it_was_passed_up_is_told_and_bounded() -> None:
    """Two nodes that are each other's cloud would pass a request to and fro until both are full."""
    assert REQUEST.asked is not None
    twice = replace(REQUEST, asked=replace(REQUEST.asked, passed=2))
    async with cloud(streams(chunk("ok"), chunk(finish="stop"))) as (upstream, seen):
        assert upstream.refuses(twice) == ""
        await hear(upstream, twice)
        assert "too often" in upstream.refuses(replace(REQUEST, asked=replace(REQUEST.asked, passed=3)))
    assert seen[0][1]["Outpost-Passed"] == "3"


async def test_redacted_takes_out_what_the_patterns_name() -> None:
    async with cloud(streams(chunk("ok"), chunk(finish="stop")), policy="redacted") as (upstream, seen):
        await hear(upstream)
    assert seen[0][0]["messages"] == [{"role": "user", "content": "I am [email]"}]


async def test_a_begun_answer_goes_on() -> None:
    begun = Request("r", (1, 2, 3), 40, asked=REQUEST.asked, continued=tuple(b"Once upon"))
    handler = streams(chunk("Once "), chunk("upon"), chunk(" a time"), chunk(finish="length"))
    async with cloud(handler) as (upstream, seen):
        heard = await hear(upstream, begun)
    assert text(heard) == " a time", "what it said again is not said twice"
    body = seen[0][0]
    assert body["messages"][-1] == {"role": "assistant", "content": "Once upon"}
    assert (body["max_tokens"], body["continue_final_message"], body["add_generation_prompt"]) == (31, True, False)
    assert heard[-1] == Finished("length", 3, 16)


async def test_its_answer_is_no_longer_than_ours_would_be() -> None:
    async with cloud(streams(chunk("x" * 100), chunk(finish="stop"))) as (upstream, _):
        heard = await hear(upstream)
    assert len(text(heard)) == 40
    assert heard[-1] == Finished("length", 3, 40)


async def test_tool_calls_come_back_in_our_own_form() -> None:
    def part(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
        return {"index": index, "id": f"call_{index}", "function": function}

    handler = streams(
        chunk(tool_calls=[part(0, "", "look")]),
        chunk(tool_calls=[part(0, '{"a": "x"')]),
        chunk(tool_calls=[part(0, "}")]),
        chunk(tool_calls=[part(1, '{"b": 2}', "listen")]),
        chunk(finish="tool_calls"),
    )
    async with cloud(handler) as (upstream, _):
        heard = await hear(upstream, Request("r", (1,), 400, asked=REQUEST.asked))
    numbers = count()
    parser = ToolCallParser(lambda: f"id{next(numbers)}")
    deltas = [*parser.push(text(heard)), *parser.finish()]
    assert [delta for delta in deltas if isinstance(delta, CallStart)] == [
        CallStart(0, "id0", "look"),
        CallStart(1, "id1", "listen"),
    ]
    arguments = {0: "", 1: ""}
    for delta in deltas:
        if isinstance(delta, ArgumentsDelta):
            arguments[delta.index] += delta.text
    assert arguments == {0: '{"a": "x"}', 1: '{"b": 2}'}
    assert parser.complete == 2
    assert isinstance(heard[-1], Finished)
    assert heard[-1].reason == "stop"


BROKEN: list[tuple[Handler, str]] = [
    (streams(b"<html>busy</html>", kind="text/html"), "text/html where a stream"),
    (streams(b'{"error": {"message": "ann@example.com"}}', kind="application/json"), "application/json where"),
    (streams(b'data: {"error": {"message": "ann@example.com"}}\n\n'), "broke off with an error"),
    (streams(chunk("a"), b"data: <html>\n\n"), "no chunk"),
    (streams(b"data: " + b"x" * (2 << 20)), "no chunk"),
    (streams(b"\xff\xfe\n\n" + b"data: \xff\n\n"), "no chunk"),
    (streams(chunk("a")), "in the middle"),
    (streams(chunk("a"), b"data: [DONE]\n\n"), "without a reason"),
    (streams(chunk("a"), None), "cannot be reached"),
    (streams(status=302, Location="http://example.com/"), "redirects"),
    (streams(status=401), "answers 401"),
    (streams(status=500), "answers 500"),
    (streams(status=529), "answers 529"),
    (streams(chunk("a"), 30.0), "cannot be reached: TimeoutError"),
    (streams(b": ka\n", *[0.1, b": ka\n"] * 30), "cannot be reached: TimeoutError"),
]


@pytest.mark.parametrize(("handler", "word"), BROKEN)
async def test_whatever_it_answers_instead_is_a_failure_that_quotes_nothing(handler: Handler, word: str) -> None:
    async with cloud(handler, silence_s=1.0, first_s=1.0) as (upstream, _):
        heard = await hear(upstream)
    assert isinstance(heard[-1], Failed)
    error = heard[-1].error
    assert isinstance(error, UpstreamFailed), heard
    assert word in error.message
    assert "example.com" not in error.message
    assert len(heard) <= 3


async def test_one_that_never_answers_is_given_up() -> None:
    async def sleeps(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with cloud(sleeps, first_s=0.3) as (upstream, _):
        (end,) = await hear(upstream)
    assert isinstance(end, Failed)


async def test_nobody_there_is_a_failure() -> None:
    upstream = Cloud(CloudSettings(url="http://127.0.0.1:9", policy="always"), ByteModel(), "")
    await upstream.open()
    (end,) = await hear(upstream)
    await upstream.close()
    assert isinstance(end, Failed)


STATUSES: list[tuple[int, type[NodeError], int | None]] = [
    (429, Overloaded, None),
    (503, UpstreamFailed, 503),
    (529, UpstreamFailed, 503),
    (403, UpstreamFailed, 403),
    (302, UpstreamFailed, 404),
]


@pytest.mark.parametrize(("status", "kind", "answered"), STATUSES)
async def test_a_status_is_taken_for_what_it_means(status: int, kind: type[NodeError], answered: int | None) -> None:
    async with cloud(streams(status=status, **{"Retry-After": "8"})) as (upstream, _):
        (end,) = await hear(upstream)
    assert isinstance(end, Failed)
    assert type(end.error) is kind
    assert getattr(end.error, "answered", None) == answered
    assert end.error.retry_after in (8, None)


async def test_an_end_by_a_filter_is_for_nobody_to_get_round() -> None:
    async with cloud(streams(chunk("a"), chunk(finish="content_filter"))) as (upstream, _):
        heard = await hear(upstream)
    assert isinstance(heard[-1], Failed)
    assert isinstance(heard[-1].error, Filtered)


REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"policy": "never"}, {}, "nothing may go there"),
    ({"policy": "ask"}, {}, "did not allow"),
    ({"policy": "ask"}, {"asked": Asked(b"{}", "allow")}, ""),
    ({"policy": "always"}, {"asked": Asked(b"{}", "never")}, "does not want"),
    ({"policy": "always"}, {}, ""),
    ({"policy": "redacted"}, {"asked": Asked(b"x" * (1 << 20))}, "too long"),
    ({"policy": "always"}, {"asked": None}, "own model"),
    ({"policy": "always"}, {"hops": 1}, "from a neighbour"),
    ({"policy": "always"}, {"continued": (1,), "constraint": Constraint("lark", "x")}, "begun"),
    ({"policy": "always", "continues": False}, {"continued": (1,)}, "begun"),
    ({"policy": "always"}, {"continued": (1,)}, ""),
]


@pytest.mark.parametrize(("settings", "change", "word"), REFUSALS)
def test_what_may_go_there(settings: dict[str, Any], change: dict[str, Any], word: str) -> None:
    upstream = Cloud(CloudSettings(url="http://x", **settings), ByteModel(), "")
    refusal = upstream.refuses(
        Request(**{"id": "r", "prompt": (1,), "max_tokens": 9, "asked": REQUEST.asked, **change})
    )
    assert (word in refusal) if word else refusal == ""


@pytest.mark.parametrize(("models", "state"), [(200, "closed"), (500, "open")])
async def test_it_is_tried_with_a_question_that_costs_nothing(models: int, state: str) -> None:
    async with cloud(streams(), models=models) as (upstream, seen):
        record = Record()
        for _ in range(5):
            record.failed(-100.0, 0.0)
        upstream.probe(record)
        upstream.probe(record)
        assert record.breaker.state == "half-open"
        async with asyncio.timeout(10):
            while record.breaker.state == "half-open":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    assert record.breaker.state == state
    assert not seen, "no completion was asked for"


@pytest.mark.parametrize(
    ("url", "key", "exposed"),
    [("http://a.example/v1", "k", True), ("https://a.example/v1", "k", False), ("http://127.0.0.1/v1", "k", False)],
)
def test_a_key_that_everybody_can_read_is_noticed(url: str, key: str, exposed: bool) -> None:
    assert Cloud(CloudSettings(url=url), ByteModel(), key).exposes_key is exposed
    assert not Cloud(CloudSettings(url=url), ByteModel(), "").exposes_key


def test_the_key_is_in_a_file_or_a_variable(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    assert api_key(CloudSettings()) == ""
    assert api_key(CloudSettings(api_key_file=str(tmp_path / "key"))) == "sk-1"
    assert api_key(CloudSettings(api_key_env="MY_KEY"), {"MY_KEY": "sk-2"}) == "sk-2"


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff", b"caf\xc3\xa9", None])
def test_a_key_that_is_none_is_told_without_being_shown(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(SettingsError, match="key") as error:
        api_key(CloudSettings(api_key_file=str(tmp_path / "key")))
    assert "two" not in error.value.message
    with pytest.raises(SettingsError, match="MY_KEY"):
        api_key(CloudSettings(api_key_env="MY_KEY"), {})
