"""OpenAI's request bodies as values. Pure: bytes in, a call out, or an InvalidRequest that names the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from node.errors import InvalidRequest, ModelNotFound, Unsupported
from node.generation import Constraint, ModelInfo, Sampling
from node.server import fields, messages, tools
from node.server.callers import Asking, Wish, wish_of

MAX_INPUTS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What chat and text completions are asked for alike; `max_tokens` None is whatever the context leaves."""

    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    constraint: Constraint | None
    logprobs: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    wish: Wish
    seeded: bool


@dataclass(frozen=True, slots=True)
class ChatCall:
    """POST /v1/chat/completions. `tools` is empty where no call may be made.

    `begun` is how the answer begins already, and is not said again; `form` is what was sent.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    options: Options
    begun: str
    form: ChatBody = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """POST /v1/completions; the prompt is text or token ids."""

    prompt: str | tuple[int, ...]
    options: Options


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """POST /v1/embeddings."""

    inputs: tuple[str | tuple[int, ...], ...]
    base64: bool
    wish: Wish


class ChatBody(fields.Common, frozen=True, kw_only=True):
    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


class CompletionBody(fields.Common, frozen=True, kw_only=True):
    prompt: Any
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    echo: bool | None = None


class EmbeddingBody(Asking, frozen=True, kw_only=True):
    input: Any
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


# field -> the values that ask for nothing; anything else is refused by name
_CHAT_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
}
_COMPLETION_HARMLESS: Mapping[str, tuple[Any, ...]] = {"best_of": (1,), "suffix": ("",), "echo": (False,)}


def parse_chat(body: bytes, info: ModelInfo, defaults: Sampling, new_seed: Callable[[], int]) -> ChatCall:
    """The chat that `body` asks for."""
    form = fields.decode(body, ChatBody)
    check_model(form.model, info)
    if not info.can_chat:
        raise Unsupported(f"The model {info.id} has no chat template; use /v1/completions.", param="model")
    fields.refuse(form, _CHAT_HARMLESS)
    conversation = messages.normalise(form.messages)
    offered = tools.definitions(form.tools or ())
    call_form = tools.constraint_for(offered, form.tool_choice, form.parallel_tool_calls is not False)
    answer_form = fields.constraint(form.response_format)
    if call_form and answer_form:
        raise Unsupported(
            "`response_format` and `tools` cannot both shape one answer; set `tool_choice` to none.",
            param="response_format",
        )
    name = "max_tokens" if form.max_completion_tokens is None else "max_completion_tokens"
    limit = form.max_tokens if form.max_completion_tokens is None else form.max_completion_tokens
    fields.within(name, limit, 1, fields.MAX_TOKENS)
    options = _options(form, info, defaults, new_seed, call_form or answer_form, limit, _top_logprobs(form))
    begun = _begun(form, conversation, shaped=bool(call_form or answer_form))
    return ChatCall(conversation[:-1] if begun else conversation, offered if call_form else (), options, begun, form)


def parse_completion(body: bytes, info: ModelInfo, defaults: Sampling, new_seed: Callable[[], int]) -> CompletionCall:
    """The text completion that `body` asks for."""
    form = fields.decode(body, CompletionBody)
    check_model(form.model, info)
    fields.refuse(form, _COMPLETION_HARMLESS)
    fields.within("max_tokens", form.max_tokens, 1, fields.MAX_TOKENS)
    fields.within("logprobs", form.logprobs, 0, 5)
    prompts = _texts_or_ids(form.prompt, "prompt", info.vocabulary_size)
    if len(prompts) != 1:
        raise Unsupported("`prompt` must be one prompt; send one request for each.", param="prompt")
    constraint = fields.constraint(form.response_format)
    return CompletionCall(
        prompts[0], _options(form, info, defaults, new_seed, constraint, form.max_tokens, form.logprobs)
    )


def parse_embedding(body: bytes, info: ModelInfo) -> EmbeddingCall:
    """The embeddings that `body` asks for."""
    form = fields.decode(body, EmbeddingBody)
    check_model(form.model, info)
    if info.embedding_size == 0:
        raise Unsupported(f"The model {info.id} makes no embeddings.", param="model")
    if form.dimensions is not None:
        raise Unsupported("This model cannot shorten its embeddings.", param="dimensions")
    if form.encoding_format not in (None, "float", "base64"):
        raise InvalidRequest("`encoding_format` must be float or base64.", param="encoding_format")
    inputs = _texts_or_ids(form.input, "input", info.vocabulary_size)
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequest(f"`input` takes at most {MAX_INPUTS} texts.", param="input")
    # The official clients ask for base64 when their caller names no format, so that is the default here too.
    return EmbeddingCall(inputs, form.encoding_format != "float", wish_of(form))


def check_model(model: str | None, info: ModelInfo) -> None:
    """A request that names no model gets the one there is."""
    if model is not None and model != info.id:
        raise ModelNotFound(f"This node serves no model of that name; it serves {info.id}.", param="model")


def _options(
    form: fields.Common,
    info: ModelInfo,
    defaults: Sampling,
    new_seed: Callable[[], int],
    constraint: Constraint | None,
    max_tokens: int | None,
    logprobs: int | None,
) -> Options:
    if form.n not in (None, 1):
        raise Unsupported("This node makes one answer a request; `n` must be 1.", param="n")
    stream, include_usage = fields.streaming(form)
    return Options(
        max_tokens=max_tokens,
        sampling=fields.sampling(form, defaults, info.vocabulary_size, new_seed),
        stop=fields.stops(form.stop),
        constraint=constraint,
        logprobs=logprobs,
        ignore_eos=bool(form.ignore_eos),
        stream=stream,
        include_usage=include_usage,
        wish=wish_of(form),
        seeded=form.seed is not None,
    )


def _begun(form: ChatBody, conversation: tuple[dict[str, Any], ...], *, shaped: bool) -> str:
    """The last message, where the answer is to go on after it."""
    if not form.continue_final_message:
        if form.add_generation_prompt is False:
            raise Unsupported(
                "`add_generation_prompt`: false goes with `continue_final_message`: true.",
                param="add_generation_prompt",
            )
        return ""
    last = conversation[-1]
    if form.add_generation_prompt:
        raise InvalidRequest("Either a message goes on, or a new one begins.", param="add_generation_prompt")
    if last["role"] != "assistant" or "tool_calls" in last or len(conversation) < 2 or not last["content"]:
        raise InvalidRequest("Only an assistant's text can go on, as the last message.", param="continue_final_message")
    if shaped:
        raise Unsupported(
            "A begun answer cannot be shaped by `response_format` or `tools`.", param="continue_final_message"
        )
    text: str = last["content"]
    return text


def _top_logprobs(form: ChatBody) -> int | None:
    fields.within("top_logprobs", form.top_logprobs, 0, 20)
    if form.top_logprobs is not None and not form.logprobs:
        raise InvalidRequest("`top_logprobs` only goes with `logprobs`: true.", param="top_logprobs")
    return (form.top_logprobs or 0) if form.logprobs else None


def _texts_or_ids(value: Any, name: str, vocabulary: int) -> tuple[str | tuple[int, ...], ...]:
    """One text, one list of token ids, or a list of either."""
    if isinstance(value, str):
        found: tuple[str | tuple[int, ...], ...] = (value,)
    elif isinstance(value, list) and value and all(_is_id(item) for item in value):
        found = (tuple(value),)
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        found = tuple(value)
    elif isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        found = tuple(tuple(item) for item in value)
    else:
        raise InvalidRequest(f"`{name}` must be a string, a list of strings or token ids.", param=name)
    for item in found:
        if not item:
            raise InvalidRequest(f"`{name}` must not be empty.", param=name)
        if isinstance(item, tuple) and not all(_is_id(number) and 0 <= number < vocabulary for number in item):
            raise InvalidRequest(f"`{name}`: token ids of this model are 0 to {vocabulary - 1}.", param=name)
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
