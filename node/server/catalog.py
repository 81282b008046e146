"""What the node serves, and its tokenizer: /v1/models, /tokenize, /detokenize."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from node.errors import InvalidRequest
from node.generation import Model, Service
from node.server import replies
from node.server.boundary import json_response, read_body
from node.server.fields import decode
from node.server.openai import check_model
from node.settings import Settings


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """`content` or `prompt`; `add_special` puts the model's own begin token in front."""

    content: str | None = None
    prompt: str | None = None
    add_special: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]


class Catalog:
    """The handlers and what they need."""

    def __init__(self, settings: Settings, service: Service) -> None:
        self._limit = settings.server.max_body_bytes
        self._service = service

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/v1/models/{id:.+}", self._one)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)

    async def _list(self, request: web.Request) -> web.Response:
        entry = replies.model_entry(self._service.model.info)
        return json_response(replies.encode({"object": "list", "data": [entry]}))

    async def _one(self, request: web.Request) -> web.Response:
        info = self._service.model.info
        check_model(request.match_info["id"], info)
        return json_response(replies.encode(replies.model_entry(info)))

    async def _tokenize(self, request: web.Request) -> web.Response:
        form = decode(await read_body(request, self._limit), TokenizeBody)
        text = form.content if form.content is not None else form.prompt
        if text is None:
            raise InvalidRequest("`content` is missing.", param="content")
        await self._service.settled()
        ids = await asyncio.to_thread(_encode, self._service.model, text, form.add_special)
        return json_response(replies.encode({"tokens": ids, "count": len(ids)}))

    async def _detokenize(self, request: web.Request) -> web.Response:
        form = decode(await read_body(request, self._limit), DetokenizeBody)
        size = self._service.model.info.vocabulary_size
        if not all(0 <= id < size for id in form.tokens):
            raise InvalidRequest(f"`tokens`: token ids of this model are 0 to {size - 1}.", param="tokens")
        await self._service.settled()
        text = await asyncio.to_thread(self._service.model.decode, form.tokens)
        return json_response(replies.encode({"content": text.decode("utf-8", "replace")}))


def _encode(model: Model, text: str, add_special: bool) -> list[int]:
    """A whole prompt begins with what an empty one consists of: the model's own begin token, if it has one."""
    ids, begin = model.encode(text), model.encode("")
    return ids[len(begin) :] if begin and not add_special and ids[: len(begin)] == begin else ids
