"""OpenAI's request bodies: any JSON is a call or an InvalidRequest, and what cannot be honoured is refused by name."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import InvalidRequest, ModelNotFound, Unsupported
from node.generation import ModelInfo
from node.server.openai import (
    ChatCall,
    CompletionCall,
    EmbeddingCall,
    parse_chat,
    parse_completion,
    parse_embedding,
)
from node.settings import SamplingDefaults
from tests.server.wire import USER
from tests.support.service import INFO


def chat(info: ModelInfo = INFO, **fields: Any) -> ChatCall:
    body = json.dumps({"messages": USER, **fields}).encode()
    return parse_chat(body, info, SamplingDefaults(), lambda: 5)


def completion(**fields: Any) -> CompletionCall:
    return parse_completion(json.dumps({"prompt": "x", **fields}).encode(), INFO, SamplingDefaults(), lambda: 5)


def embedding(**fields: Any) -> EmbeddingCall:
    return parse_embedding(json.dumps({"input": "x", **fields}).encode(), INFO)


TOOL = {"type": "function", "function": {"name": "f"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


def test_a_plain_chat() -> None:
    call = chat(model=INFO.id)
    assert call.messages == ({"role": "user", "content": "hi"},)
    assert call.tools == ()
    options = call.options
    assert (options.max_tokens, options.stop, options.constraint, options.logprobs) == (None, (), None, None)
    assert (options.stream, options.include_usage, options.ignore_eos) == (False, False, False)


def test_max_completion_tokens_wins() -> None:
    assert chat(max_tokens=5).options.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).options.max_tokens == 7


def test_logprobs() -> None:
    assert chat(logprobs=True).options.logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).options.logprobs == 20
    assert chat(logprobs=False).options.logprobs is None
    assert completion(logprobs=5).options.logprobs == 5


def test_tools_make_a_constraint_unless_none_may_be_called() -> None:
    call = chat(tools=[TOOL])
    assert call.tools
    assert call.options.constraint
    assert chat(tools=[TOOL], tool_choice="none").tools == ()
    formatted = chat(tools=[TOOL], tool_choice="none", response_format=FORMAT)
    assert formatted.options.constraint
    assert formatted.options.constraint.kind == "json_schema"


HARMLESS = {
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "n": 1,
    "unknown_extra": {"x": 1},
    "temperature": None,
    "stop": None,
    "tools": None,
    "reasoning_effort": None,
}


def test_what_asks_for_nothing_is_accepted() -> None:
    assert chat(**HARMLESS) == chat()


REFUSED = {
    "audio": {"voice": "x"},
    "modalities": ["text", "audio"],
    "web_search_options": {},
    "prediction": {"type": "content"},
    "store": True,
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "service_tier": "scale",
    "reasoning_effort": "high",
    "verbosity": "low",
    "n": 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(Unsupported) as caught:
        chat(**{name: REFUSED[name]})
    assert caught.value.param == name


@pytest.mark.parametrize(("name", "value"), [("best_of", 2), ("suffix", "x"), ("echo", True), ("n", 0)])
def test_so_for_text_completions(name: str, value: Any) -> None:
    with pytest.raises(Unsupported) as caught:
        completion(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_completion_tokens", -5),
        ("temperature", "hot"),
        ("temperature", [1]),
        ("stop", 3),
        ("stream", "yes"),
        ("top_logprobs", 5),
        ("logprobs", 3),
        ("messages", "hi"),
        ("messages", None),
        ("tools", {}),
        ("response_format", "json"),
        ("stream_options", []),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{name: value})
    assert caught.value.param == name


def test_top_logprobs_has_a_limit() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(logprobs=True, top_logprobs=21)
    assert caught.value.param == "top_logprobs"


def test_a_format_and_tools_do_not_mix() -> None:
    with pytest.raises(Unsupported) as caught:
        chat(tools=[TOOL], response_format=FORMAT)
    assert caught.value.param == "response_format"


def test_an_unknown_model_names_the_one_there_is() -> None:
    with pytest.raises(ModelNotFound, match="scripted"):
        chat(model="gpt-x")
    with pytest.raises(ModelNotFound):
        embedding(model="gpt-x")


def test_a_model_without_a_template_does_not_chat() -> None:
    with pytest.raises(Unsupported, match="template"):
        chat(ModelInfo("m", "e", 0, 10, 1, 10, 0, False))


@pytest.mark.parametrize(
    ("given", "prompt"), [("ab", "ab"), (["ab"], "ab"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))], ids=str
)
def test_prompts(given: Any, prompt: Any) -> None:
    assert completion(prompt=given).prompt == prompt


@pytest.mark.parametrize(
    "given",
    ["", [], [""], [[]], [257], [-1], [True], [10**30], ["a", "b"], [[1], [2]], [1, "a"], {}, None, 3],
    ids=str,
)
def test_prompts_that_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=given)
    assert caught.value.param == "prompt"


def test_embeddings_are_base64_unless_floats_are_named() -> None:
    assert embedding().base64
    assert embedding(encoding_format="base64").base64
    assert not embedding(encoding_format="float").base64
    assert embedding(input=["a", "b"]).inputs == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [("dimensions", 8), ("encoding_format", "hex"), ("input", ""), ("input", ["x"] * 257), ("input", [[1], ["a"]])],
    ids=str,
)
def test_embeddings_that_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        embedding(**{name: value})
    assert caught.value.param == name


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = [
    *("messages", "prompt", "input", "max_tokens", "stop", "tools", "tool_choice", "response_format", "logit_bias"),
    *("logprobs", "stream_options", "seed", "n", "stream", "top_logprobs", "modalities", "functions", "model"),
    *("type", "function", "role", "content", "name", "schema", "json_schema", "parameters", "encoding_format"),
]
NAMED = st.dictionaries(st.sampled_from(NAMES), ANY_JSON | st.dictionaries(st.sampled_from(NAMES), ANY_JSON))
LIKELY = st.fixed_dictionaries(
    {
        "messages": st.just(USER) | st.lists(NAMED, max_size=2),
        "prompt": st.just("x") | ANY_JSON,
        "input": st.just("x") | ANY_JSON,
        "tools": st.none() | st.just([TOOL]) | st.lists(NAMED, max_size=2),
    }
)


@settings(max_examples=100)
@given(LIKELY, NAMED)
def test_any_json_is_a_call_or_an_invalid_request(likely: dict[str, Any], named: dict[str, Any]) -> None:
    body = json.dumps({**likely, **named}).encode("utf-8", "surrogatepass")
    _parse_all(body)


@settings(max_examples=200)
@given(st.binary(max_size=60) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_call_or_an_invalid_request(body: bytes) -> None:
    _parse_all(body)


def _parse_all(body: bytes) -> None:
    """Anything but a call or an InvalidRequest fails the test by itself."""
    for parse in (
        lambda: parse_chat(body, INFO, SamplingDefaults(), lambda: 5),
        lambda: parse_completion(body, INFO, SamplingDefaults(), lambda: 5),
        lambda: parse_embedding(body, INFO),
    ):
        with contextlib.suppress(InvalidRequest):
            assert isinstance(parse(), ChatCall | CompletionCall | EmbeddingCall)
