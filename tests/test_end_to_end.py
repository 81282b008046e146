"""The default model behind the real server, asked by the clients that people really use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.process import serving

pytestmark = pytest.mark.model
MODEL = "smollm2-135m-instruct"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def url(weights: Path) -> Iterator[str]:
    with serving("--threads", "1", "--slots", "4", "--set", "engine.context=2048") as (_, address):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def post(url: str, body: object) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_official_client_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me about the moon in one sentence."}],
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "moon" in text.lower()
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")


def test_same_seed_same_text_and_streamed_or_not(client: openai.OpenAI) -> None:
    ask: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Name a colour and say why."}],
        "max_tokens": 24,
        "temperature": 1.0,
        "seed": 7,
    }
    whole = client.chat.completions.create(**ask).choices[0].message.content
    streamed = client.chat.completions.create(**ask, stream=True)
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    other = client.chat.completions.create(**{**ask, "seed": 8}).choices[0].message.content
    assert whole != other


def test_tools_are_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "How is the weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=80,
        temperature=0,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")
    follow_up = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "How is the weather in Oslo?"},
            choice.message.model_dump(exclude_none=True),  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "rain, 5 degrees"},
        ],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=20,
    )
    assert follow_up.choices[0].message.content


def test_tools_stream_in_fragments(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "How is the weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=80,
        temperature=0,
        stream=True,
    )
    deltas = [chunk.choices[0].delta.tool_calls[0] for chunk in stream if chunk.choices[0].delta.tool_calls]
    assert deltas[0].function
    assert deltas[0].function.name == "get_weather"
    arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    assert json.loads(arguments)["city"]
    assert len(deltas) > 1  # how many there are is up to the drafts: what was guessed right comes at once


def test_structured_output_fits_its_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 16},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        },
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe an animal."}],
        response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": True}},
        max_tokens=60,
        temperature=1.2,
        seed=5,
    )
    animal = json.loads(answer.choices[0].message.content or "")
    assert 0 <= animal["legs"] <= 8


def test_embeddings_and_completions(client: openai.OpenAI) -> None:
    vectors = client.embeddings.create(model=MODEL, input=["a cat sat on a mat", "a dog lay on a rug"]).data
    assert len(vectors) == 2
    assert len(vectors[0].embedding) == 576
    text = client.completions.create(model=MODEL, prompt="The capital of Norway is", max_tokens=8, temperature=0)
    assert text.choices[0].text
    assert text.usage
    assert text.usage.completion_tokens <= 8


def test_eight_clients_at_once_all_get_whole_answers(client: openai.OpenAI) -> None:
    def one(number: int) -> str:
        messages: Any = [{"role": "user", "content": f"Say something about the number {number}."}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, temperature=0)
        assert answer.choices[0].finish_reason in ("stop", "length")
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(8)))


def test_bad_requests_leave_the_next_one_fine(url: str, client: openai.OpenAI) -> None:
    chat = f"{url}/v1/chat/completions"
    user = [{"role": "user", "content": "hi"}]
    long = [{"role": "user", "content": "word " * 5000}]
    nonsense = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    for body, status, code in (
        (b"", 400, None),
        (b'{"model": ', 400, None),
        (b"\xff\xfe{}", 400, None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, None),
        ({"model": "gpt-9", "messages": user}, 404, "model_not_found"),
        ({"model": MODEL, "messages": [{"role": "ghost", "content": "x"}]}, 400, None),
        ({"model": MODEL, "messages": user, "max_tokens": -1}, 400, None),
        ({"model": MODEL, "messages": long}, 400, "context_length_exceeded"),
        ({"model": MODEL, "messages": user, "max_tokens": 10**9}, 400, None),
        ({"model": MODEL, "messages": user, "response_format": nonsense}, 400, None),
        ({"model": MODEL, "messages": user, "pad": "x" * (10 << 20)}, 413, None),
    ):
        answered, error = post(chat, body)
        assert answered == status, (body[:50] if isinstance(body, bytes) else list(body), error)
        assert error["error"]["message"]
        assert code is None or error["error"]["code"] == code
    messages: Any = user
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2).choices[0].message.content


def test_the_llm_command_talks_to_a_node(url: str, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f'- model_id: outpost\n  model_name: {MODEL}\n  api_base: "{url}/v1"\n'
    )
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-m", "llm", "-m", "outpost", "-n", "-o", "max_tokens", "12", "Say hello."]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()


def test_ask_streams_from_a_node(url: str) -> None:
    command = [sys.executable, "-m", "node", "ask", "--url", url, "--max-tokens", "12", "--json", "Say hello."]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["text"]
