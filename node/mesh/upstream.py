"""The cloud as an upstream: any OpenAI-compatible base URL, POST /chat/completions, streamed.

Its text comes back as tokens of this node's own vocabulary, so that numbering, journal, resume and fail-over are what
they are for every answer; tool calls come back in the one form in which this node's models make them. Whether a request
may go there is decided in `refuses`, before anything is opened; what `cloud.redact` names is taken out.

A cloud may answer anything: HTML, an error under a 200, a redirect, half a stream, nothing. Each of these is an
UpstreamFailed, and none of it is quoted, because it may quote what was asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from node.chunks import Choice, ClientError, SseDecoder, ToolDelta, chunk_of
from node.errors import Filtered, Overloaded, SettingsError, UpstreamFailed
from node.generation import Event, Finished, Model, Request, Started, TokenSource
from node.mesh.forward import seconds
from node.mesh.record import Record
from node.mesh.remote import Held, Remote
from node.mesh.retoken import Continuation, retokenized
from node.redact import MOST_TEXT, Redactor
from node.settings import Cloud as CloudSettings

log = logging.getLogger(__name__)

CONNECT_S, PROBE_S = 5.0, 5.0
PASSED = "Outpost-Passed"  # how many nodes have passed it up: two that are each other's cloud must not do so for ever
MOST_PASSED = 3
_CHUNK = 64 << 10
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
_MAX_KEY_BYTES = 4096
_OVERLOADED = frozenset({429, 503, 529})

# How this node's own models write a call; server/tools has the grammar, server/calls reads it.
_OPEN, _MIDDLE, _CLOSE = '<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"


class Cloud:
    """One base URL. `open` it on the event loop, `close` it at the end. See `places.Cloud`."""

    def __init__(self, settings: CloudSettings, model: Model, key: str, clock: Callable[[], float] = time.monotonic):
        self._settings = settings
        self._url = settings.url.rstrip("/")
        self._model = model
        self._key = key
        self._clock = clock
        self._redactor = Redactor(settings.redact) if settings.policy == "redacted" else None
        self._session: aiohttp.ClientSession | None = None
        self._probing: asyncio.Task[None] | None = None
        self.name = f"cloud/{urlsplit(settings.url).hostname or 'cloud'}"
        self._remote = Remote(self)

    @property
    def exposes_key(self) -> bool:
        """Whether the key travels over a network without TLS."""
        there = urlsplit(self._url)
        return bool(self._key) and there.scheme == "http" and there.hostname not in _OWN_HOSTS

    async def open(self) -> None:
        """Nothing is sent before somebody asks."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """End what runs and close the connections."""
        await self._remote.close()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def source(self) -> TokenSource:
        return self._remote

    def refuses(self, request: Request) -> str:
        """See `places.Cloud`."""
        policy, asked = self._settings.policy, request.asked
        if policy == "never":
            return "nothing may go there (cloud.policy)"
        if request.hops:
            return "it came from a neighbour"
        if asked is None:
            return "it asks for what only this node's own model can do"
        if asked.cloud == "never":
            return "its caller does not want it"
        if policy == "ask" and asked.cloud != "allow":
            return "its caller did not allow it"
        if asked.passed >= MOST_PASSED:
            return "it was passed up too often already"
        if policy == "redacted" and len(asked.body) > MOST_TEXT:
            return "it is too long to be redacted"
        if request.continued and (request.constraint is not None or not self._settings.continues):
            return "it cannot go on from a begun answer"
        return ""

    def probe(self, record: Record) -> None:
        """Ask for its models, which costs nothing, unless that is under way."""
        if (self._probing is None or self._probing.done()) and record.breaker.allows(self._clock()):
            self._probing = asyncio.get_running_loop().create_task(self._probe(record))

    async def answer(self, request: Request, held: Held) -> AsyncIterator[Event]:
        """See `remote.Upstream`."""
        said = self._model.decode(request.continued).decode(errors="replace")
        response = await self._post(await self._redacted(self._body(request, said)), request)
        try:
            await self._check(response)
            yield Started()
            made = len(request.continued)
            async for event in self._events(response, said, held):
                if isinstance(event, str):
                    for token in retokenized(self._model, event):
                        yield token
                        made += 1
                        if made >= request.max_tokens:
                            yield Finished("length", len(request.prompt), made)
                            return
                else:
                    yield Finished(event.reason, len(request.prompt), made)
        finally:
            response.close()

    def _body(self, request: Request, said: str) -> dict[str, Any]:
        assert request.asked is not None, "such a request is refused"
        body: dict[str, Any] = json.loads(request.asked.body)
        if "max_tokens" in body:
            body["max_tokens"] -= len(request.continued)
        if said:
            body["messages"] = [*body["messages"], {"role": "assistant", "content": said}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if self._settings.model:
            body["model"] = self._settings.model
        return body | {"stream": True}

    async def _redacted(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._redactor is None:
            return body
        messages = await asyncio.to_thread(self._redactor.value, {**body, "model": None})
        return {**messages, "model": body["model"]} if "model" in body else messages

    async def _post(self, body: dict[str, Any], request: Request) -> aiohttp.ClientResponse:
        assert self._session is not None, "it was not opened"
        assert request.asked is not None, "such a request is refused"
        url, headers = f"{self._url}/chat/completions", {PASSED: str(request.asked.passed + 1)}
        async with asyncio.timeout(self._settings.first_s):
            return await self._session.post(url, json=body, headers=headers, allow_redirects=False)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Refuse what is no stream of chunks."""
        status, retry_after = response.status, seconds(response.headers.get("Retry-After"))
        if 300 <= status < 400:
            raise UpstreamFailed("The cloud redirects; cloud.url must be where it answers.", answered=404)
        if status == 429:
            raise Overloaded("The cloud has no room now.", retry_after=retry_after or 5)
        if status in _OVERLOADED:
            raise UpstreamFailed(f"The cloud answers {status}.", answered=503, retry_after=retry_after)
        if status != 200:
            raise UpstreamFailed(f"The cloud answers {status}.", answered=status, retry_after=retry_after)
        if response.content_type != "text/event-stream":
            raise UpstreamFailed(f"The cloud answers {response.content_type} where a stream was asked for.")

    async def _events(self, response: aiohttp.ClientResponse, said: str, held: Held) -> AsyncIterator[str | Finished]:
        """Texts, then the end."""
        decoder, calls, rest = SseDecoder(), _Calls(), Continuation(said)
        wait_s = self._settings.first_s
        until = self._clock() + wait_s
        while True:
            if await held.wait():
                until = self._clock() + wait_s
            async with asyncio.timeout(max(0.0, until - self._clock())):
                data = await response.content.read(_CHUNK)
            if not data:
                raise UpstreamFailed("The cloud stopped in the middle of its answer.")
            for choice in _choices(decoder, data):
                wait_s = self._settings.silence_s
                until = self._clock() + wait_s
                if text := rest.push(choice.delta.content or ""):
                    yield text
                for call in choice.delta.tool_calls or ():
                    if text := calls.push(call):
                        yield text
                if choice.finish_reason is not None:
                    if text := rest.finish() + calls.finish():
                        yield text
                    yield _end(choice.finish_reason)
                    return

    async def _probe(self, record: Record) -> None:
        assert self._session is not None, "it was not opened"
        status, now = None, self._clock
        try:
            async with asyncio.timeout(PROBE_S):
                async with self._session.get(f"{self._url}/models", allow_redirects=False) as response:
                    status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.debug("the cloud cannot be reached", extra={"reason": type(error).__name__})
        if status == 200:
            record.breaker.succeeded(now())
            log.info("the cloud answers again", extra={"place": self.name})
        else:
            record.failed(now(), random.random(), status)


class _Calls:
    """Tool calls in fragments, as text in the form of this node's own models; one call at a time."""

    def __init__(self) -> None:
        self._index: int | None = None

    def push(self, delta: ToolDelta) -> str:
        """The text that a fragment adds."""
        function, text = delta.function, ""
        if delta.index != self._index:
            text = self.finish() + ("\n" if self._index is not None else "")
            name = (function.name if function else None) or ""
            text += f"{_OPEN}{json.dumps(name)}{_MIDDLE}"
            self._index = delta.index
        return text + ((function.arguments if function else None) or "")

    def finish(self) -> str:
        """What closes the open call."""
        return "" if self._index is None else _CLOSE


def api_key(settings: CloudSettings, environment: dict[str, str] | None = None) -> str:
    """The key from its file or variable; "" where neither is set. Raises SettingsError."""
    environment = dict(os.environ) if environment is None else environment
    if settings.api_key_file:
        try:
            with Path(settings.api_key_file).expanduser().open("rb") as file:
                key = file.read(_MAX_KEY_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cloud.api_key_file cannot be read: {settings.api_key_file}.") from error
    else:
        key = environment.get(settings.api_key_env, "").strip() if settings.api_key_env else ""
    named = settings.api_key_file or settings.api_key_env
    if named and not (key.isascii() and key.isprintable() and key):
        raise SettingsError(f"There is no API key for the cloud in {named}.")
    return key


def _choices(decoder: SseDecoder, data: bytes) -> Iterator[Choice]:
    """The first choice of each chunk that `data` completes; raises UpstreamFailed for what is none."""
    try:
        for event in decoder.feed(data):
            if event.strip() == "[DONE]":
                raise UpstreamFailed("The cloud ended its answer without a reason.")
            chunk = chunk_of(event)
            if chunk.error is not None:
                raise UpstreamFailed("The cloud broke off with an error.")
            yield from chunk.choices[:1]
    except ClientError as error:
        raise UpstreamFailed("The cloud sent what is no chunk.") from error


def _end(reason: str) -> Finished:
    if reason == "content_filter":
        raise Filtered("The cloud's content filter ended this answer.")
    return Finished("length" if reason == "length" else "stop", 0, 0)
