"""Single fields: bytes are decoded strictly, ranges hold, and every refusal names its field."""

import json
from typing import Any

import msgspec
import pytest

from node.errors import InvalidRequest, Unsupported
from node.generation import Constraint
from node.server import fields
from node.settings import SamplingDefaults

DEFAULTS = SamplingDefaults()
COMPACT = '{"x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": "}'


class Body(fields.Common, frozen=True, kw_only=True):
    required: int = 0


class Strict(msgspec.Struct):
    name: str
    inner: dict[str, float] | None = None


BAD_BODIES = [
    (b"", "empty"),
    (b"  \n", "empty"),
    (b"{", "not valid JSON"),
    (b'{"name": "x"} x', "not valid JSON"),
    (b"[]", "wrong"),
    (b'{"name": "\xff"}', "UTF-8"),
    (b'{"other": "\xed\xa0\x80"}', "UTF-8"),
    (b'{"name": "\\ud800"}', "surrogate"),
    (b'{"name": "\\ud800 and then some"}', "surrogate"),
    (b'{"name": "\\udc00"}', "surrogate"),
    (b'{"other": {"\\ud83d": 1}}', "surrogate"),
    (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Expected `str`"),
    (b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeply"),
    (b'{"other": ' + b'{"a":' * 100_000, "deeply"),
    (b'{"inner": {"a": NaN}}', "not valid JSON"),
    (b'{"inner": {"a": 1e999}}', "out of range"),
    (b'{"inner": {"a": ' + b"9" * 5000 + b"}}", "out of range"),
    ('{"name": "x"}'.encode("utf-16"), "UTF-8"),
]


@pytest.mark.parametrize(("body", "words"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_body_that_is_no_object_is_a_clear_400(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.decode(body, Strict)
    assert words in caught.value.message
    assert caught.value.status == 400


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert fields.decode(b'{"name": "\\ud83d\\ude00"}', Strict).name == "😀"


@pytest.mark.parametrize(
    ("body", "param"), [(b"{}", "name"), (b'{"name": 3}', "name"), (b'{"name": "x", "inner": {"k": "v"}}', "inner")]
)
def test_a_wrong_type_names_its_field(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.decode(body, Strict)
    assert caught.value.param == param


RANGES = [
    ("temperature", -0.1, 2.1),
    ("top_p", -0.1, 1.1),
    ("top_k", -1, 1001),
    ("min_p", -0.1, 1.1),
    ("presence_penalty", -2.1, 2.1),
    ("frequency_penalty", -2.1, 2.1),
    ("repeat_penalty", 0, 11),
    ("repetition_penalty", 0, 11),
    ("seed", -(1 << 63) - 1, 1 << 63),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, *values in RANGES for value in values])
def test_numbers_outside_of_their_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.sampling(Body(**{name: value}), DEFAULTS, 100, lambda: 1)
    assert caught.value.param == name


def test_defaults_come_from_the_settings_and_the_seed_from_outside() -> None:
    sampling = fields.sampling(Body(), SamplingDefaults(temperature=0.3, top_k=7), 100, lambda: 4711)
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.3, 7, 4711)


def test_what_is_given_wins() -> None:
    body = Body(temperature=0, top_p=0.5, top_k=0, min_p=0, seed=-1, repetition_penalty=1.5, logit_bias={"7": -100})
    sampling = fields.sampling(body, DEFAULTS, 100, lambda: 1)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 0, 0)
    assert sampling.repeat_penalty == 1.5
    assert sampling.logit_bias == ((7, -100),)
    assert 0 <= sampling.seed < 0xFFFFFFFF


@pytest.mark.parametrize(
    "biases",
    [
        *({"100": 1}, {"-1": 1}, {"x": 1}, {"1": 101}, {"1": -101}, {"²": 1}, {"9" * 5000: 1}),
        {str(id): 0 for id in range(1025)},
    ],
    ids=range(8),
)
def test_logit_bias_is_bounded(biases: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.sampling(Body(logit_bias=biases), DEFAULTS, 100, lambda: 1)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("stop", ["", ["a", ""], ["a"] * 5, "x" * 257])
def test_stop_strings_are_bounded(stop: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.stops(stop)
    assert caught.value.param == "stop"


def test_stop_is_a_string_or_up_to_four() -> None:
    assert fields.stops(None) == ()
    assert fields.stops("a") == ("a",)
    assert fields.stops(["a", "b", "c", "d"]) == ("a", "b", "c", "d")


def test_stream_options() -> None:
    assert fields.streaming(Body()) == (False, False)
    usage = fields.StreamOptions(include_usage=True)
    assert fields.streaming(Body(stream=True, stream_options=usage)) == (True, True)
    with pytest.raises(InvalidRequest) as caught:
        fields.streaming(Body(stream_options=usage))
    assert caught.value.param == "stream_options"
    with pytest.raises(Unsupported):
        fields.streaming(Body(stream=True, stream_options=fields.StreamOptions(include_obfuscation=True)))


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint("json_schema", COMPACT + ',"type":"object"}')),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": False}},
            Constraint("json_schema", COMPACT + ',"type":"object","properties":{"a":{"type":"integer"}}}'),
        ),
        ({"type": "regex", "pattern": "a+"}, Constraint("regex", "a+")),
        ({"type": "lark_grammar", "grammar": 'start: "a"'}, Constraint("lark", 'start: "a"')),
    ],
)
def test_response_formats(form: Any, expected: Constraint | None) -> None:
    assert fields.constraint(form) == expected


def deep(levels: int) -> Any:
    return json.loads('{"a":' * levels + "{}" + "}" * levels)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": ["text"]}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": 1}},
            "response_format.json_schema.strict",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "description": 1}},
            "response_format.json_schema.description",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": deep(65)}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"description": "x" * (257 << 10)}}},
            "response_format.json_schema.schema",
        ),
        ({"type": "regex"}, "response_format.pattern"),
        ({"type": "lark_grammar", "grammar": ""}, "response_format.grammar"),
    ],
)
def test_an_unusable_format_is_refused_by_name(form: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields.constraint(form)
    assert caught.value.param == param


def test_depth_is_counted_in_levels() -> None:
    assert not fields.nested_deeper({"a": [1]}, 2)
    assert fields.nested_deeper({"a": [1]}, 1)
    assert not fields.nested_deeper("text", 0)
