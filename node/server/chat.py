"""POST /v1/chat/completions and /v1/completions: from a body to work that can run.

Parsing, templating, tokenising and compiling a grammar take milliseconds and more, so they run in a thread, in one go;
all of them are done before the first byte of an answer, so that whatever is wrong is a real HTTP status.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from aiohttp import web

from node.errors import ContextLengthExceeded, InvalidRequest
from node.generation import Model, Request, Service
from node.server import openai
from node.server.answer import Answerer
from node.server.boundary import read_body
from node.server.calls import ToolCallParser
from node.server.replays import Work
from node.server.replies import ChatReply, TextReply
from node.settings import Settings


class Completions:
    """The two handlers and what they need."""

    def __init__(self, settings: Settings, service: Service, answerer: Answerer, new_seed: Callable[[], int]) -> None:
        self._settings = settings
        self._service = service
        self._answerer = answerer
        self._new_seed = new_seed

    def add_to(self, app: web.Application) -> None:
        """Add both routes."""
        app.router.add_post("/v1/chat/completions", partial(self._handle, self._plan_chat))
        app.router.add_post("/v1/completions", partial(self._handle, self._plan_text))

    async def _handle(self, plan: Callable[[bytes], Work], request: web.Request) -> web.StreamResponse:
        body = await read_body(request, self._settings.server.max_body_bytes)
        work = await asyncio.to_thread(plan, body)
        return await self._answerer.answer(request, body, work)

    def _plan_chat(self, body: bytes) -> Work:
        model = self._service.model
        call = openai.parse_chat(body, model.info, self._settings.sampling, self._new_seed)
        prompt = model.chat(call.messages, call.tools)
        serial = uuid.uuid4().hex
        request = _request(f"chatcmpl-{serial}", model, prompt, call.options, "messages")
        check_constraint(model, call.options, "tools" if call.tools else "response_format")
        reply = partial(_chat_reply, request, model, int(time.time()), call, serial)
        return Work(request, reply, call.options.stream)

    def _plan_text(self, body: bytes) -> Work:
        model = self._service.model
        call = openai.parse_completion(body, model.info, self._settings.sampling, self._new_seed)
        prompt = model.encode(call.prompt) if isinstance(call.prompt, str) else call.prompt
        request = _request(f"cmpl-{uuid.uuid4().hex}", model, prompt, call.options, "prompt")
        check_constraint(model, call.options, "response_format")
        reply = partial(
            TextReply,
            request.id,
            int(time.time()),
            model.info.id,
            include_usage=call.options.include_usage,
            token_bytes=_token_bytes(model, call.options),
        )
        return Work(request, reply, call.options.stream)


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


def _chat_reply(request: Request, model: Model, created: int, call: openai.ChatCall, serial: str) -> ChatReply:
    # Numbered under the request's own serial: every reader of one generation sees the same ids.
    numbers = count()
    parser = ToolCallParser(lambda: f"call_{serial[:20]}{next(numbers):04d}") if call.tools else None
    return ChatReply(
        request.id,
        created,
        model.info.id,
        include_usage=call.options.include_usage,
        token_bytes=_token_bytes(model, call.options),
        parser=parser,
    )


def _token_bytes(model: Model, options: openai.Options) -> Callable[[int], bytes] | None:
    return None if options.logprobs is None else lambda id: model.decode((id,))
