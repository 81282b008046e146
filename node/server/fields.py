"""Single fields of OpenAI's request bodies: decoded strictly, checked, and named in every refusal.

Nothing is ignored silently: a field is honoured, or is known to change nothing here, or is refused by name. Keys that
OpenAI does not define are let through, because clients send extras.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from node.errors import InvalidRequest, Unsupported
from node.generation import Constraint, Sampling
from node.server.callers import Asking

MAX_STOPS, MAX_STOP_CHARACTERS = 4, 256
MAX_BIASES = 1024
MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH = 256 << 10, 64
MAX_TOKENS = 1 << 31

_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# Compact output: small models otherwise wander off into endless white space, and every blank costs a step.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

T = TypeVar("T")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Common(Asking, frozen=True, kw_only=True):
    """What chat and text completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    response_format: dict[str, Any] | None = None


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`; raises InvalidRequest with the field in `param`."""
    if not body.strip():
        raise InvalidRequest("The request body is empty; send a JSON object.")
    try:
        body.decode()  # msgspec does not look into fields that it skips
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise mistyped(error) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The request body is not valid UTF-8 (at byte {error.start}).") from error
    except RecursionError as error:
        raise InvalidRequest("The JSON in the request body is nested too deeply.") from error
    except ValueError as error:
        lone = "surrogate" in str(error) or "hex escape" in str(error) or _SURROGATE.search(body)
        hint = " A \\u escape in it is half of a surrogate pair, which is not a character." if lone else ""
        raise InvalidRequest(f"The request body is not valid JSON: {error}.{hint}") from error


def convert(value: Any, kind: type[T], where: str) -> T:
    """`value`, found at `where`, as a `kind`; raises InvalidRequest with the whole path in `param`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise mistyped(error, where) from error


def mistyped(error: msgspec.ValidationError, where: str = "") -> InvalidRequest:
    """msgspec's complaint with its path in OpenAI's notation."""
    text = str(error)
    found = _PATH.search(text)
    path = where + (found["path"] if found else "")
    if missing := _MISSING.search(text):
        path += f".{missing['name']}"
    param = path.removesuffix("[...]").lstrip(".") or None
    what = text[: found.start()] if found else text
    if missing:
        return InvalidRequest(f"`{param}` is missing.", param=param)
    return InvalidRequest(f"`{param}`: {what}." if param else f"The request body is wrong: {what}.", param=param)


def within(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse a number outside of its range; None was not given."""
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"`{name}` must be between {least} and {most}.", param=name)


def refuse(body: msgspec.Struct, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields that mean something this node cannot do; `harmless` lists the values that ask for nothing."""
    for name, accepted in harmless.items():
        value = getattr(body, name)
        if value is not None and value not in accepted:
            raise Unsupported(f"This node cannot honour `{name}` as it was given; leave it out.", param=name)


def sampling(body: Common, defaults: Sampling, vocabulary: int, new_seed: Callable[[], int]) -> Sampling:
    """How to sample, with the node's defaults for what the request leaves out."""
    repeat_name = "repeat_penalty" if body.repeat_penalty is not None else "repetition_penalty"
    repeat = body.repeat_penalty if body.repeat_penalty is not None else body.repetition_penalty
    within("temperature", body.temperature, 0, 2)
    within("top_p", body.top_p, 0, 1)
    within("top_k", body.top_k, 0, 1000)
    within("min_p", body.min_p, 0, 1)
    within("presence_penalty", body.presence_penalty, -2, 2)
    within("frequency_penalty", body.frequency_penalty, -2, 2)
    within(repeat_name, repeat, 0.01, 10)
    within("seed", body.seed, -(1 << 63), (1 << 63) - 1)
    return Sampling(
        temperature=_given(body.temperature, defaults.temperature),
        top_k=_given(body.top_k, defaults.top_k),
        top_p=_given(body.top_p, defaults.top_p),
        min_p=_given(body.min_p, defaults.min_p),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        repeat_penalty=_given(repeat, defaults.repeat_penalty),
        logit_bias=_logit_bias(body.logit_bias or {}, vocabulary),
        # Engines take 32 bits, and the highest value means "random" to some.
        seed=(new_seed() if body.seed is None else body.seed) % 0xFFFFFFFF,
    )


def stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings; none of them empty."""
    texts = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(texts) > MAX_STOPS:
        raise InvalidRequest(f"`stop` takes at most {MAX_STOPS} strings.", param="stop")
    if any(not 1 <= len(text) <= MAX_STOP_CHARACTERS for text in texts):
        raise InvalidRequest(f"Each `stop` string must have 1 to {MAX_STOP_CHARACTERS} characters.", param="stop")
    return texts


def streaming(body: Common) -> tuple[bool, bool]:
    """Whether to stream, and whether to close the stream with the usage."""
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest("`stream_options` only goes with `stream`: true.", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise Unsupported("This node does not pad its streams.", param="stream_options.include_obfuscation")
    return bool(body.stream), bool(options and options.include_usage)


def constraint(form: Mapping[str, Any] | None) -> Constraint | None:
    """What `response_format` forces the answer to match; always enforced, `strict` or not."""
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_schema", schema_text({"type": "object"}, "response_format"))
    if kind == "json_schema":
        return Constraint("json_schema", _named_schema(form.get("json_schema")))
    if kind == "regex":
        return Constraint("regex", _text(form, "pattern"))
    if kind == "lark_grammar":
        return Constraint("lark", _text(form, "grammar"))
    raise InvalidRequest(
        "`response_format.type` must be text, json_object, json_schema, regex or lark_grammar.",
        param="response_format.type",
    )


def schema_text(schema: Mapping[str, Any], where: str) -> str:
    """A JSON schema as one line of JSON, with compact output asked for; bounded in size and depth."""
    if nested_deeper(schema, MAX_SCHEMA_DEPTH):
        raise InvalidRequest(f"The schema in `{where}` nests more than {MAX_SCHEMA_DEPTH} levels.", param=where)
    text = msgspec.json.encode({"x-guidance": _COMPACT, **schema})
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"The schema in `{where}` is larger than {MAX_SCHEMA_BYTES} bytes.", param=where)
    return text.decode()


def nested_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects in `value` nest more than `most` levels; walks level by level, never recursing."""
    level = [value]
    for _ in range(most + 1):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _children(outer)]
        if not level:
            return False
    return True


def named(name: Any, where: str) -> str:
    """A function's or schema's name as OpenAI allows it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"`{where}` must be 1 to 64 letters, digits, underscores or dashes.", param=where)
    return name


def _named_schema(form: Any) -> str:
    where = "response_format.json_schema"
    if not isinstance(form, dict):
        raise InvalidRequest(f"`{where}` must be an object with `name` and `schema`.", param=where)
    named(form.get("name"), f"{where}.name")
    if not isinstance(form.get("description"), str | None):
        raise InvalidRequest(f"`{where}.description` must be a string.", param=f"{where}.description")
    if not isinstance(form.get("strict"), bool | None):
        raise InvalidRequest(f"`{where}.strict` must be true or false.", param=f"{where}.strict")
    if not isinstance(schema := form.get("schema"), dict):
        raise InvalidRequest(f"`{where}.schema` must be a JSON schema object.", param=f"{where}.schema")
    return schema_text(schema, f"{where}.schema")


def _text(form: Mapping[str, Any], key: str) -> str:
    where = f"response_format.{key}"
    text = form.get(key)
    if not isinstance(text, str) or not text or len(text) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"`{where}` must be a non-empty string of at most {MAX_SCHEMA_BYTES} bytes.", param=where)
    return text


def _logit_bias(biases: Mapping[str, float], vocabulary: int) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_BIASES:
        raise InvalidRequest(f"`logit_bias` takes at most {MAX_BIASES} entries.", param="logit_bias")
    if any(not -100 <= value <= 100 for value in biases.values()):
        raise InvalidRequest("`logit_bias` values must be between -100 and 100.", param="logit_bias")
    if any(not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocabulary) for key in biases):
        raise InvalidRequest(
            f"`logit_bias` keys must be token ids of this model, 0 to {vocabulary - 1}.", param="logit_bias"
        )
    return tuple((int(key), value) for key, value in biases.items())


def _children(value: dict[str, Any] | list[Any]) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
