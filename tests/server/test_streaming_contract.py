"""What clients of an OpenAI-compatible streaming server rely on, one test a line.

framing_*: the bytes of a stream · chunks_*: what is in them · errors_*: refusals and failures · stress_*: many, slow
and vanishing clients. What needs a real engine (a long prefill beside running streams, SIGTERM) is tested with the
runtime.
"""

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

from node.errors import EngineFailed, Overloaded, SettingsError, Unavailable
from node.layers import load
from tests.server.wire import USER, chat, events, open_post, post, refused, stream, text_of, until
from tests.support.service import scripted, serving

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'


async def raw_stream(*script: Any, **more: Any) -> tuple[bytes, Any]:
    service, _ = scripted(*script)
    async with serving(service, keepalive_s=0.1) as url:
        _, body, headers = await post(url + PATH, chat(stream=True, **more))
        return body, headers


async def chunks_of(*script: Any, **more: Any) -> list[Any]:
    return events((await raw_stream(*script, **more))[0])


async def test_framing_events_are_single_data_lines_and_done_is_last() -> None:
    body, headers = await raw_stream("line\nbreak", "\r\n", "data: x\n\n")
    assert headers["Content-Type"] == "text/event-stream"
    assert re.fullmatch(rb"(data: \{[^\r\n]*\}\n\n)+data: \[DONE\]\n\n", body)
    assert text_of(events(body)) == "line\nbreak\r\ndata: x\n\n"


async def test_framing_headers_forbid_buffering() -> None:
    _, headers = await raw_stream("a")
    assert headers["Cache-Control"] == "no-cache"
    assert headers["X-Accel-Buffering"] == "no"
    assert "Content-Encoding" not in headers
    assert "Content-Length" not in headers


async def test_framing_keepalives_are_comments_of_one_newline_and_no_id_or_retry() -> None:
    body, _ = await raw_stream(0.35, "a")
    assert b"\n\n: ka\n: ka\n" in body
    assert b": ka\n\n" not in body
    assert not re.search(rb"^(id|retry|event):", body, re.MULTILINE)


async def test_framing_the_role_goes_out_at_once_but_only_for_what_is_valid() -> None:
    gate = asyncio.Event()
    service, _ = scripted(gate, context=100)
    async with serving(service) as url:
        reader, writer = await open_post(url, PATH, chat(stream=True))
        assert b'"role":"assistant"' in await asyncio.wait_for(reader.readuntil(b"}\n\n"), 30)
        writer.close()
        long = [{"role": "user", "content": "x" * 200}]
        status, error = await refused(url, {"messages": long, "stream": True})
        assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_chunks_share_id_created_and_model_and_finish_once() -> None:
    *chunks, done = await chunks_of("a", "b")
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert isinstance(chunks[0]["created"], int)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


async def test_chunks_begin_with_the_role_and_end_with_an_empty_delta() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in (await chunks_of("a", "b"))[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]


async def test_chunks_of_tool_calls_name_the_call_once() -> None:
    chunks = (await chunks_of(*CALL, tools=[TOOL]))[1:-1]
    parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert {part["index"] for part in parts} == {0}
    assert [part["function"]["name"] for part in parts if "id" in part] == ["f"]
    assert parts[0]["type"] == "function"
    assert "".join(part["function"]["arguments"] for part in parts) == '{"a": "b"}'
    assert all(set(part) == {"index", "function"} for part in parts[1:])
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_chunks_have_usage_only_when_asked_for() -> None:
    *chunks, usage, _ = await chunks_of("a", stream_options={"include_usage": True})
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 1
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("usage" not in chunk for chunk in (await chunks_of("a"))[:-1])


async def test_chunks_are_whole_characters_and_never_the_beginning_of_a_stop_string() -> None:
    smile = "😀".encode()
    assert [c["choices"][0]["delta"].get("content") for c in (await chunks_of(smile[:2], smile[2:]))[1:-2]] == ["😀"]
    assert text_of(await chunks_of("one S", "TO", "P two", stop=["STOP"])) == "one "
    assert text_of(await chunks_of("one S", "TO", stop=["STOP"])) == "one STO"


async def test_errors_have_openais_form() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=("a-key-of-16-letters",)) as url:
        status, error = await refused(url, chat())
        assert (status, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
        assert set(error) == {"message", "type", "param", "code"}
    async with serving(service) as url:
        status, error = await refused(url, chat(model="other"))
        assert (status, error["type"], error["code"]) == (404, "invalid_request_error", "model_not_found")
        status, error = await refused(url, chat(temperature="x"))
        assert (status, error["param"], error["code"]) == (400, "temperature", None)


async def test_errors_that_pass_are_429_or_5xx_and_a_retry_joins_by_its_key() -> None:
    service, source = scripted()
    async with serving(service) as url:
        source.refusal = Overloaded("Full.")
        assert (await refused(url, chat()))[0] == 429
        source.refusal = None
        headers = {"Idempotency-Key": "k", "x-stainless-retry-count": "1"}
        answers = [(await post(url + PATH, chat(), headers))[1] for _ in range(3)]
        assert len(set(answers)) == 1
        assert len(source.submitted) == 1


async def test_errors_say_when_to_come_back_and_carry_the_request_id() -> None:
    service, source = scripted()
    source.refusal = Unavailable("Stopping.", retry_after=1000)
    async with serving(service) as url:
        status, _, headers = await post(url + PATH, chat(), {"x-request-id": "mine"})
        assert (status, headers["Retry-After"], headers["x-request-id"]) == (503, "120", "mine")


async def test_errors_after_the_first_byte_are_events_without_done() -> None:
    body, _ = await raw_stream("a", EngineFailed("Broke."))
    last = json.loads(body.split(b"data: ")[-1])
    assert last == {"error": {"message": "Broke.", "type": "server_error", "param": None, "code": "engine_failed"}}
    assert b'"stop"' not in body


HONOURED: dict[str, Any] = {
    "max_completion_tokens": (3, lambda request: request.max_tokens == 3),
    "stop": (["q"], lambda request: request.stop == ("q",)),
    "seed": (7, lambda request: request.sampling.seed == 7),
    "temperature": (0.5, lambda request: request.sampling.temperature == 0.5),
    "top_p": (0.5, lambda request: request.sampling.top_p == 0.5),
    "presence_penalty": (1, lambda request: request.sampling.presence_penalty == 1),
    "frequency_penalty": (1, lambda request: request.sampling.frequency_penalty == 1),
    "logit_bias": ({"5": 2}, lambda request: request.sampling.logit_bias == ((5, 2),)),
    "response_format": ({"type": "json_object"}, lambda request: request.constraint.kind == "json_schema"),
    "logprobs": (True, lambda request: request.logprobs == 0),
    "tools": ([TOOL], lambda request: request.constraint.kind == "lark"),
    "messages": ([{"role": "developer", "content": [{"type": "text", "text": "x"}]}], lambda request: request.prompt),
}


@pytest.mark.parametrize("name", HONOURED)
async def test_errors_fields_are_honoured(name: str) -> None:
    value, holds = HONOURED[name]
    service, source = scripted()
    async with serving(service) as url:
        assert (await post(url + PATH, {"messages": USER, name: value}))[0] == 200
    assert holds(source.submitted[0])


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("stop", "", "stop"),
        ("stop", ["a"] * 5, "stop"),
        ("n", 2, "n"),
        ("tool_choice", "required", "tool_choice"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ("audio", {}, "audio"),
    ],
    ids=str,
)
async def test_errors_or_refused_by_name(name: str, value: Any, param: str) -> None:
    service, _ = scripted()
    async with serving(service) as url:
        status, error = await refused(url, {"messages": USER, name: value})
        assert (status, error["param"]) == (400, param)


async def test_errors_embeddings_are_base64_when_no_format_is_named() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        _, body, _ = await post(f"{url}/v1/embeddings", {"input": "a"})
        assert isinstance(json.loads(body)["data"][0]["embedding"], str)


async def test_errors_cors_lets_a_browser_read_a_401() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=("a-key-of-16-letters",)) as url:
        status, body, headers = await post(url + PATH, chat(), {"Origin": "https://a.example"})
        assert status == 401
        assert json.loads(body)["error"]
        assert headers["Access-Control-Allow-Origin"] == "*"


async def test_stress_a_client_that_goes_away_frees_its_slot_for_the_next() -> None:
    gate = asyncio.Event()
    service, source = scripted("a", gate, slots=1)
    async with serving(service) as url:
        for streaming in (True, False):
            _, writer = await open_post(url, PATH, chat(stream=streaming))
            await until(lambda: source.busy == 1)
            writer.close()
            await until(lambda: source.busy == 0)
        gate.set()
        assert text_of(await stream(url)) == "a"


async def test_stress_requests_do_not_disturb_each_other() -> None:
    service, _ = scripted(*["abc "] * 50, slots=4)
    async with serving(service) as url:
        answers = await asyncio.gather(*(stream(url) for _ in range(16)), refused(url, chat(top_p=3)))
    assert all(text_of(chunks) == "abc " * 50 for chunks in answers[:-1])


async def test_stress_a_full_queue_refuses_at_once_while_health_answers() -> None:
    service, source = scripted()
    source.refusal = Overloaded("The queue is full.", retry_after=4)
    async with serving(service) as url:
        status, _, headers = await asyncio.wait_for(post(url + PATH, chat(stream=True)), 30)
        assert (status, headers["Retry-After"]) == (429, "4")
        service.ready = False
        async with aiohttp.ClientSession() as client, client.get(f"{url}/health/ready") as response:
            assert response.status == 503


async def test_stress_prompts_are_never_truncated() -> None:
    service, source = scripted(context=1000)
    text = "long " * 150
    async with serving(service) as url:
        await post(f"{url}/v1/completions", {"prompt": text})
        assert len(source.submitted[0].prompt) == len(text) + 1
        assert (await refused(url, {"prompt": text * 2}, "/v1/completions"))[0] == 400
    assert len(source.submitted) == 1


async def test_stress_a_draining_node_refuses_and_lets_streams_finish() -> None:
    gate = asyncio.Event()
    service, source = scripted("a", gate, "b")
    async with serving(service) as url:
        running = asyncio.create_task(stream(url))
        await until(lambda: source.played == 1)
        service.draining, source.refusal = True, Unavailable("The node is stopping.", retry_after=5)
        assert (await refused(url, chat()))[0] == 503
        gate.set()
        assert text_of(await running) == "ab"


def test_stress_nobody_else_may_listen_without_a_key() -> None:
    assert load(environment={}).server.host == "127.0.0.1"
    with pytest.raises(SettingsError):
        load(environment={}, flags={"server.host": "0.0.0.0"})
