"""POST /v1/embeddings: several inputs in one request, as many at a time as the node has slots."""

from __future__ import annotations

import asyncio
import base64
import struct
import uuid
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from node.errors import NodeError, Overloaded, Unavailable
from node.generation import Embedded, Failed, Model, Request, Service, TokenSource
from node.server import openai, replies
from node.server.boundary import json_response, read_body
from node.server.callers import PRIORITY
from node.server.chat import exceeded
from node.server.guard import Identity
from node.server.meter import Meter
from node.settings import Settings
from node.stream.session import Session


class Embeddings:
    """The handler and what it needs."""

    def __init__(self, settings: Settings, service: Service, meter: Meter, identity: Identity) -> None:
        self._limit = settings.server.max_body_bytes
        self._service = service
        self._meter = meter
        self._identity = identity

    def add_to(self, app: web.Application) -> None:
        """Add the route."""
        app.router.add_post("/v1/embeddings", self._handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asker = self._identity.asker(request)
        body = await read_body(request, self._limit)
        await self._service.settled()
        model = self._service.model
        call, prompts = await asyncio.to_thread(_plan, body, model)
        like = asker.stamp(Request(f"embd-{uuid.uuid4().hex}", (), 0, kind="embed"), call.wish)
        embedded = await self._embed_all(like, prompts, model)
        read = sum(one.prompt_tokens for one in embedded)
        self._meter.tokens("prompt", read)
        answer = _body(embedded, call.base64, model.info.id, read)
        return json_response(answer, headers={PRIORITY: like.level})

    async def _embed_all(self, like: Request, prompts: Sequence[tuple[int, ...]], model: Model) -> list[Embedded]:
        """In order; nothing is left running when one fails or the client goes away."""
        sessions: list[Session] = []
        done: list[Embedded] = []
        source, slots = self._service.source_of(model), model.info.slots
        try:
            while len(done) < len(prompts):
                while len(sessions) < len(prompts) and len(sessions) - len(done) < slots:
                    index = len(sessions)
                    batch = 0 if sessions else sum(map(len, prompts))
                    request = replace(like, id=f"{like.id}-{index}", prompt=prompts[index], batch=batch)
                    if not self._submit(request, source, sessions, waits=len(done) < len(sessions)):
                        break
                done.append(await _vector(sessions[len(done)]))
            return done
        finally:
            for session in sessions:
                session.cancel()

    def _submit(self, request: Request, source: TokenSource, sessions: list[Session], *, waits: bool) -> bool:
        """Whether the request was taken; a full queue is no error while others of ours run and will free a place."""
        session = Session(request, source)
        try:
            source.submit(request, session.feed)
        except Overloaded:
            if not waits:
                raise
            return False
        sessions.append(session)
        return True


def _plan(body: bytes, model: Model) -> tuple[openai.EmbeddingCall, list[tuple[int, ...]]]:
    call = openai.parse_embedding(body, model.info)
    prompts = [tuple(model.encode(item)) if isinstance(item, str) else item for item in call.inputs]
    if (longest := max(map(len, prompts))) > model.info.context:
        raise exceeded(longest, 0, model.info.context, "input")
    return call, prompts


async def _vector(session: Session) -> Embedded:
    end = await session.finished()
    if isinstance(end, Embedded):
        return end
    error: NodeError = end.error if isinstance(end, Failed) else Unavailable("The node is stopping.")
    raise error


def _body(embedded: Sequence[Embedded], as_base64: bool, model: str, prompt_tokens: int) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(one) if as_base64 else one.vector}
        for index, one in enumerate(embedded)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return replies.encode({"object": "list", "data": data, "model": model, "usage": usage})


def _base64(embedded: Embedded) -> str:
    """Little-endian float32, as the official clients unpack it."""
    return base64.b64encode(struct.pack(f"<{len(embedded.vector)}f", *embedded.vector)).decode()
