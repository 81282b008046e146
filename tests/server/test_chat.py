"""From a body to work: what reaches the model and the source, and what is refused before the first byte."""

import json
from typing import Any

import pytest

from node.server.app import create_app
from node.settings import Cloud, Settings
from tests.server.wire import USER, chat, events, post, refused, stream, text_of
from tests.support.service import ByteModel, running_app, scripted, serving

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


async def test_the_request_that_reaches_the_source() -> None:
    service, source = scripted()
    body = chat(temperature=0, seed=3, stop=["X"], max_tokens=9, logprobs=True, top_logprobs=2, ignore_eos=True)
    async with serving(service) as url:
        await post(url + PATH, body)
    (request,) = source.submitted
    assert request.prompt == tuple(service.model.chat(USER))
    assert (request.max_tokens, request.stop, request.logprobs, request.ignore_eos) == (9, ("X",), 2, True)
    assert (request.sampling.temperature, request.sampling.seed) == (0, 3)
    assert request.kind == "generate"
    assert request.id.startswith("chatcmpl-")


async def test_the_rest_of_the_context_is_the_answers_limit() -> None:
    service, source = scripted(context=50)
    async with serving(service) as url:
        await post(url + PATH, chat())
        await post(f"{url}/v1/completions", {"prompt": [1, 2, 3]})
    assert [request.max_tokens for request in source.submitted] == [50 - len(source.submitted[0].prompt), 47]


async def test_seeds_differ_unless_given() -> None:
    service, source = scripted()
    async with serving(service) as url:
        await post(url + PATH, chat())
        await post(url + PATH, chat())
    assert len({request.sampling.seed for request in source.submitted}) == 2


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"messages": [{"role": "user", "content": "x" * 100}]}, "messages"),
        (PATH, {"messages": USER, "max_tokens": 91}, "messages"),
        ("/v1/completions", {"prompt": "x" * 100}, "prompt"),
    ],
    ids=["prompt", "answer", "text"],
)
async def test_too_long_is_a_real_400_with_both_numbers(path: str, body: Any, param: str, streaming: bool) -> None:
    service, source = scripted(context=100)
    async with serving(service) as url:
        status, error = await refused(url, {**body, "stream": streaming}, path)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "100 tokens" in error["message"]
    assert source.submitted == []


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "wrong"}}}},
            "response_format",
        ),
        ({"response_format": {"type": "regex", "pattern": "(("}}, "response_format"),
        ({"response_format": {"type": "lark_grammar", "grammar": "nonsense"}}, "response_format"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": 3}}}]},
            "tools",
        ),
    ],
    ids=["schema", "regex", "lark", "tools"],
)
async def test_an_unusable_grammar_is_a_400_never_free_text(more: Any, param: str) -> None:
    service, source = scripted()
    async with serving(service) as url:
        status, error = await refused(url, chat(stream=True, **more))
    assert (status, error["param"]) == (400, param)
    assert source.submitted == []


async def test_messages_and_tools_reach_the_template() -> None:
    service, source = scripted()
    async with serving(service) as url:
        await post(url + PATH, chat(tools=[TOOL]))
        await post(url + PATH, chat(tools=[TOOL], tool_choice="none"))
    assert isinstance(service.model, ByteModel)
    (_, offered), (_, withheld) = service.model.chats
    assert offered[0]["function"]["name"] == "f"
    assert list(withheld) == []
    assert source.submitted[0].constraint is not None
    assert source.submitted[1].constraint is None


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


async def test_calls_have_ids_of_their_own() -> None:
    service, _ = scripted(CALL + "\n" + CALL)
    async with serving(service) as url:
        _, raw, _ = await post(url + PATH, chat(tools=[TOOL]))
    (choice,) = json.loads(raw)["choices"]
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(id.startswith("call_") for id in ids)


async def test_a_text_completion_streams_and_does_not() -> None:
    service, source = scripted()
    async with serving(service) as url:
        _, raw, _ = await post(f"{url}/v1/completions", {"prompt": "a", "stream": True, "stop": "ld"})
        assert "".join(chunk["choices"][0]["text"] for chunk in events(raw)[:-1]) == "Hello wor"
        _, raw, _ = await post(f"{url}/v1/completions", {"prompt": "a"})
        assert json.loads(raw)["choices"][0]["text"] == "Hello world."
    assert source.submitted[0].prompt == (256, 97)


async def test_length_is_told() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        chunks = await stream(url, max_tokens=2)
    assert text_of(chunks) == "Hello wor"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_of_nothing_is_refused() -> None:
    service, _ = scripted()
    async with serving(service) as url:
        status, error = await refused(url, {"prompt": ""}, "/v1/completions")
    assert (status, error["param"]) == (400, "prompt")


@pytest.mark.parametrize("streaming", [True, False])
async def test_what_the_load_costs_an_answer_is_told(streaming: bool) -> None:
    service, source = scripted()
    service.admission.most_tokens = 2
    body = chat(stream=streaming, logprobs=True, max_tokens=9)
    async with serving(service) as url:
        _, told, headers = await post(url + PATH, body)
        assert headers["Outpost-Degraded"] == "shorten"
        choices = [chunk["choices"][0] for chunk in events(told)[1:-1]] if streaming else json.loads(told)["choices"]
        assert choices[-1]["finish_reason"] == "length"
        assert all(choice["logprobs"] is None for choice in choices)
        service.admission.most_tokens = None
        _, _, headers = await post(url + PATH, body)
        assert "Outpost-Degraded" not in headers
    assert [(request.max_tokens, request.logprobs) for request in source.submitted] == [(2, None), (9, 0)]


async def test_a_callers_limits_are_told() -> None:
    service, _ = scripted()
    service.admission.told = {"x-ratelimit-remaining-tokens": "7"}
    async with serving(service) as url:
        for more in ({}, {"stream": True}):
            _, _, headers = await post(url + PATH, chat(**more))
            assert headers["x-ratelimit-remaining-tokens"] == "7"


async def test_an_answer_goes_on_after_how_it_began() -> None:
    service, source = scripted()
    begun = {"role": "assistant", "content": "Once upon"}
    async with serving(service) as url:
        assert (await post(url + PATH, chat(messages=[*USER, begun], continue_final_message=True)))[0] == 200
    model = service.model
    assert source.submitted[0].prompt == (*model.chat(USER), *model.encode("Once upon")[1:])


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": True},
            "continue_final_message",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "content": "x"}]}
            | {"continue_final_message": True, "response_format": {"type": "json_object"}},
            "continue_final_message",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "content": "x"}]}
            | {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
async def test_a_beginning_that_cannot_go_on_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    async with serving(scripted()[0]) as url:
        status, error = await refused(url, chat(**more))
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("headers", "cloud"), [({}, ""), ({"Outpost-Cloud": "allow"}, "allow"), ({"Outpost-Cloud": "Never"}, "never")]
)
async def test_what_may_leave_is_kept_only_where_there_is_a_cloud(headers: dict[str, str], cloud: str) -> None:
    service, source = scripted()
    settings = Settings(cloud=Cloud(url="http://127.0.0.1:1/v1", policy="ask"))
    async with running_app(create_app(settings, service)) as url:
        await post(url + PATH, chat(seed=3), headers)
        await post(f"{url}/v1/completions", {"prompt": "x"})
    async with serving(service) as url:
        await post(url + PATH, chat())
    (asked, text, alone) = (request.asked for request in source.submitted)
    assert asked is not None
    assert asked.cloud == cloud
    assert json.loads(asked.body) == {"messages": USER, "seed": 3}
    assert text is alone is None
