"""The official `openai` client against the node, on a real port."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from node.errors import EngineFailed, NodeError, Overloaded
from node.generation import Request, Sink
from tests.server.wire import USER, until
from tests.support.service import ScriptedService, ScriptedSource, running, scripted, serving

KEY = "a-key-of-16-letters"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)


def connect(url: str, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, **{"max_retries": 0, **more})


async def ask(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model="scripted", messages=USER, **more)


async def collect(stream: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in stream]


async def test_chat_streamed_and_whole() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=(KEY,), keepalive_s=0.1) as url, connect(url) as client:
        whole = await ask(client)
        assert whole.choices[0].message.content == "Hello world."
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + 4
        chunks = await collect(await ask(client, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world."
        assert chunks[-1].usage.completion_tokens == 4
        assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_keepalives_do_not_disturb_it() -> None:
    service, _ = scripted(0.35, "a", 0.25, "b")
    async with serving(service, keepalive_s=0.1) as url, connect(url) as client:
        chunks = await collect(await ask(client, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"


async def test_models_and_embeddings_and_text() -> None:
    service, _ = scripted()
    async with serving(service) as url, connect(url) as client:
        assert [model.id for model in (await client.models.list()).data] == ["scripted"]
        assert (await client.models.retrieve("scripted")).owned_by == "outpost"
        made = await client.embeddings.create(model="scripted", input=["a", "bc"])
        assert [one.embedding for one in made.data] == [[1.0, 2.0, -0.5], [1.0, 3.0, -0.5]]
        text = await client.completions.create(model="scripted", prompt="x")
        assert text.choices[0].text == "Hello world."


async def test_tools_streamed_and_whole() -> None:
    service, _ = scripted(*CALL)
    async with serving(service) as url, connect(url) as client:
        (choice,) = (await ask(client, tools=[TOOL])).choices
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Oslo"}
        async with client.chat.completions.stream(model="scripted", messages=USER, tools=[TOOL]) as stream:
            final = await stream.get_final_completion()
        (call,) = final.choices[0].message.tool_calls or ()
        assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"city": "Oslo"})


async def test_a_call_and_its_result_go_back_in() -> None:
    service, source = scripted(CALL)
    async with serving(service) as url, connect(url) as client:
        message = (await ask(client, tools=[TOOL])).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
        source.script = ("It is sunny.",)
        answer = await client.chat.completions.create(model="scripted", messages=[*USER, message, result], tools=[TOOL])
        assert answer.choices[0].message.content == "It is sunny."


class Weather(BaseModel):
    city: str
    degrees: int


async def test_structured_output() -> None:
    service, source = scripted('{"city": "Oslo", "degrees": 3}')
    async with serving(service) as url, connect(url) as client:
        parsed = await client.chat.completions.parse(model="scripted", messages=USER, response_format=Weather)
        assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=3)
    assert source.submitted[0].constraint is not None
    assert source.submitted[0].constraint.kind == "json_schema"


async def test_logprobs() -> None:
    service, _ = scripted()
    async with serving(service) as url, connect(url) as client:
        (choice,) = (await ask(client, logprobs=True, top_logprobs=2)).choices
        assert [token.token for token in choice.logprobs.content] == ["Hello", " wor", "ld", "."]
        assert choice.logprobs.content[0].top_logprobs[1].token == "b"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (openai.BadRequestError, {"temperature": 9}),
        (openai.NotFoundError, {"model": "gpt-x"}),
        (openai.BadRequestError, {"max_tokens": 10**6}),
    ],
)
async def test_errors_are_its_classes(kind: type[openai.APIStatusError], body: Any) -> None:
    service, _ = scripted()
    async with serving(service) as url, connect(url) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**{"model": "scripted", "messages": USER, **body})
        assert caught.value.request_id


async def test_a_wrong_key_is_its_authentication_error() -> None:
    service, _ = scripted()
    async with serving(service, api_keys=("another-key-of-letters",)) as url, connect(url) as client:
        with pytest.raises(openai.AuthenticationError):
            await ask(client)


async def test_an_error_in_a_stream_is_raised_by_it() -> None:
    service, _ = scripted("a", EngineFailed("The engine broke."))
    async with serving(service) as url, connect(url) as client:
        stream = await ask(client, stream=True)
        assert [(await anext(stream)).choices[0].delta.content for _ in range(2)] == ["", "a"]
        with pytest.raises(openai.APIError, match="The engine broke"):
            await anext(stream)


class BusySource(ScriptedSource):
    """Refuses the first attempts."""

    refusals = 2

    def submit(self, request: Request, sink: Sink) -> None:
        if self.refusals:
            self.refusals -= 1
            raise self.error
        super().submit(request, sink)

    error: NodeError = Overloaded("Full.", retry_after=1)


async def test_it_retries_what_passes_and_succeeds() -> None:
    source = BusySource()
    async with serving(ScriptedService(source)) as url, connect(url, max_retries=2) as client:
        assert (await ask(client)).choices[0].message.content == "Hello world."
        assert source.refusals == 0


async def test_it_does_not_retry_what_stays_wrong() -> None:
    service, source = scripted()
    async with running(service) as (url, runner), connect(url, max_retries=2) as client:
        with pytest.raises(openai.BadRequestError):
            await ask(client, top_p=7)
        assert runner.server is not None
        assert runner.server.requests_count == 1
    assert source.submitted == []


async def test_closing_its_stream_frees_the_slot() -> None:
    service, source = scripted("a", asyncio.Event())
    async with serving(service) as url, connect(url) as client:
        stream = await ask(client, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "a":
                break
        await stream.close()
        await until(lambda: source.busy == 0)
        assert len(source.cancelled) == 1
