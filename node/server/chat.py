"""POST /v1/chat/completions and /v1/completions: from a body to work that can run.

Parsing, templating, tokenising and compiling a grammar take milliseconds and more, so they run in a thread, in one go;
all of them are done before the first byte of an answer, so that whatever is wrong is a real HTTP status.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import msgspec
from aiohttp import web

from node.errors import ContextLengthExceeded, Gone, InvalidRequest
from node.generation import Model, ModelInfo, Request, Service
from node.server import openai, recall
from node.server.boundary import read_body
from node.server.callers import Asker
from node.server.calls import ToolCallParser
from node.server.deferral import Deferral
from node.server.outward import asked_of
from node.server.replies import ChatReply, Reply, TextReply
from node.server.work import Work
from node.settings import Settings
from node.store.streams import StoredStream

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where a generation comes from: route, the id's serial, when, and what the client sent."""

    path: str
    serial: str
    created: int
    body: bytes
    model: str = ""  # that made its tokens; another one cannot go on with them


_origin = msgspec.msgpack.Decoder(Origin)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _About:
    """What a reply is made of, and nothing more: it is kept for as long as anybody may read the answer."""

    model: Model
    info: ModelInfo
    serial: str
    created: int
    options: openai.Options


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a body asks for; `reply` makes a fresh answer to the request that really runs, new or given before."""

    request: Request
    options: openai.Options
    reply: Callable[[Request, bool], Reply]


class Completions:
    """The two handlers and what they need."""

    def __init__(self, settings: Settings, service: Service, answerer: Deferral, new_seed: Callable[[], int]) -> None:
        self._settings = settings
        self._service = service
        self._answerer = answerer
        self._new_seed = new_seed

    def add_to(self, app: web.Application) -> None:
        """Add both routes."""
        app.router.add_post(CHAT, self._handle)
        app.router.add_post(TEXT, self._handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, self._settings.server.max_body_bytes)
        asker = self._answerer.identity.asker(request)
        return await self._answerer.answer(request, body, await self.plan(request.path, body, asker))

    async def plan(self, path: str, body: bytes, asker: Asker) -> Work:
        """What `body`, sent to `path` (CHAT or TEXT) by `asker`, asks for; raises InvalidRequest."""
        await self._service.settled()
        origin = Origin(path, uuid.uuid4().hex, int(time.time()), body)
        return await asyncio.to_thread(self._plan, origin, asker)

    def _plan(self, origin: Origin, asker: Asker) -> Work:
        model = self._service.model
        asked = self._parse(origin, model, model.info)
        whole = asker.stamp(asked.request, asked.options.wish)
        recalls = asker.allows_recall(asked.options.wish)
        # Another model has another name, and would have given another answer.
        question = recall.question(whole, seeded=asked.options.seeded) if recalls else b""
        question = question and question + model.info.id.encode()  # another model's answer is another answer
        request, degraded = self._service.admission.shape(whole)
        reply = partial(asked.reply, request)
        kept = _encode(msgspec.structs.replace(origin, model=model.info.id))
        return Work(request, reply, asked.options.stream, kept, degraded, question, model)

    def rebuild(self, stored: StoredStream) -> Work:
        """The work of a generation that was begun before, as it was asked for then, with its answer so far.

        Raises Gone where it is not ended and was another model's: its tokens mean nothing to this one.
        """
        origin, model = _origin.decode(stored.origin), self._service.model
        info = replace(model.info, id=origin.model or model.info.id)
        if stored.end is None and info.id != model.info.id:
            raise Gone(f"This answer was begun by {info.id}; this node serves {model.info.id} now.")
        asked = self._parse(origin, model, info)
        so_far = tuple(entry.token.id for entry in stored.entries if entry.token is not None)
        # One that has spoken does not wait for its first turn any more, so that it cannot expire.
        request = replace(stored.request, continued=so_far, ttl_s=None if so_far else stored.request.ttl_s)
        whole = (asked.request.max_tokens, asked.request.logprobs) == (request.max_tokens, request.logprobs)
        degraded = () if whole else ("shorten",)
        return Work(request, partial(asked.reply, request), asked.options.stream, stored.origin, degraded, model=model)

    def _parse(self, origin: Origin, model: Model, info: ModelInfo) -> _Asked:
        """`info` is the model's own, or under the name that it had then."""
        return self._parse_chat(origin, model, info) if origin.path == CHAT else self._parse_text(origin, model, info)

    def _parse_chat(self, origin: Origin, model: Model, info: ModelInfo) -> _Asked:
        call = openai.parse_chat(origin.body, info, self._service.sampling, self._new_seed)
        prompt = model.chat(call.messages, call.tools)
        if call.begun:
            prompt += model.encode(call.begun)[len(model.encode("")) :]
        request = _request(f"chatcmpl-{origin.serial}", model, prompt, call.options, "messages")
        if self._settings.cloud.url:
            request = replace(request, asked=asked_of(call.form, call.messages, call.tools))
        check_constraint(model, call.options, "tools" if call.tools else "response_format")
        about = _About(model, info, origin.serial, origin.created, call.options)
        return _Asked(request, call.options, partial(_chat_reply, about=about, may_call=bool(call.tools)))

    def _parse_text(self, origin: Origin, model: Model, info: ModelInfo) -> _Asked:
        call = openai.parse_completion(origin.body, info, self._service.sampling, self._new_seed)
        prompt = model.encode(call.prompt) if isinstance(call.prompt, str) else call.prompt
        request = _request(f"cmpl-{origin.serial}", model, prompt, call.options, "prompt")
        check_constraint(model, call.options, "response_format")
        about = _About(model, info, origin.serial, origin.created, call.options)
        return _Asked(request, call.options, partial(_text_reply, about=about))


def answer_tokens(prompt_tokens: int, asked: int | None, context: int, param: str) -> int:
    """How many tokens the answer may have; raises ContextLengthExceeded with both numbers."""
    room = context - prompt_tokens
    if room < (asked or 1):
        raise exceeded(prompt_tokens, asked or 1, context, param)
    return asked or room


def exceeded(prompt_tokens: int, asked: int, context: int, param: str) -> ContextLengthExceeded:
    """The refusal of what does not fit, under the field that is too long."""
    error = ContextLengthExceeded(prompt_tokens, asked, context)
    error.param = param
    return error


def check_constraint(model: Model, options: openai.Options, param: str) -> None:
    """Refuse a constraint that this model cannot honour, under the field that asked for it."""
    if options.constraint is None:
        return
    try:
        model.check(options.constraint)
    except InvalidRequest as error:
        error.param = error.param or param
        raise


def _request(id: str, model: Model, prompt: Sequence[int], options: openai.Options, param: str) -> Request:
    if not prompt:
        raise InvalidRequest("The prompt is empty.", param=param)
    return Request(
        id=id,
        prompt=tuple(prompt),
        max_tokens=answer_tokens(len(prompt), options.max_tokens, model.info.context, param),
        sampling=options.sampling,
        stop=options.stop,
        constraint=options.constraint,
        logprobs=options.logprobs,
        ignore_eos=options.ignore_eos,
    )


def _chat_reply(request: Request, answer_cached: bool, *, about: _About, may_call: bool) -> ChatReply:
    # Numbered under the request's own serial: every reader of one generation sees the same ids.
    numbers = count()
    parser = ToolCallParser(lambda: f"call_{about.serial[:20]}{next(numbers):04d}") if may_call else None
    return ChatReply(
        request.id,
        about.created,
        about.info.id,
        include_usage=about.options.include_usage,
        token_bytes=_token_bytes(about.model, request),
        parser=parser,
        answer_cached=answer_cached,
    )


def _text_reply(request: Request, answer_cached: bool, *, about: _About) -> TextReply:
    return TextReply(
        request.id,
        about.created,
        about.info.id,
        include_usage=about.options.include_usage,
        token_bytes=_token_bytes(about.model, request),
        answer_cached=answer_cached,
    )


def _token_bytes(model: Model, request: Request) -> Callable[[int], bytes] | None:
    return None if request.logprobs is None else lambda id: model.decode((id,))
