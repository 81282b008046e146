"""A scripted service: the production protocols over a byte-level model, with pauses, failures and refusals on demand.

Token ids 0–255 are bytes, BEGIN is the begin token. What the source answers is a script, a list of steps:
bytes or text (one token each), a number (sleep so many seconds), an Event (wait for it), a NodeError (fail with it).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import llguidance
import msgspec
from aiohttp import web

from node.errors import InvalidRequest, NodeError
from node.generation import (
    Constraint,
    Embedded,
    Failed,
    Finished,
    Load,
    Logprob,
    Model,
    ModelInfo,
    Prewarming,
    Request,
    Sampling,
    Sink,
    Started,
    Token,
    TokenSource,
    Warmth,
)
from node.server.app import create_app
from node.settings import SamplingDefaults, Server, Settings

BEGIN = 256
Step = bytes | str | float | asyncio.Event | NodeError
INFO = ModelInfo(
    id="scripted",
    engine="scripted",
    created=1_700_000_000,
    context=4096,
    slots=2,
    vocabulary_size=257,
    embedding_size=3,
    can_chat=True,
)


class ByteModel:
    """A model whose tokens are bytes; its chat template is `role: content`, one message a line."""

    def __init__(self, info: ModelInfo = INFO) -> None:
        self._info = info
        self._tokenizer = llguidance.LLTokenizer("byte")
        self.chats: list[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = []

    @property
    def info(self) -> ModelInfo:
        return self._info

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [BEGIN, *text.encode()]

    def decode(self, ids: Sequence[int]) -> bytes:
        return bytes(id for id in ids if id < BEGIN)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        self.chats.append((messages, tools))
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    def check(self, constraint: Constraint) -> None:
        matcher = llguidance.LLMatcher
        grammar = {
            "json_schema": matcher.grammar_from_json_schema,
            "regex": matcher.grammar_from_regex,
            "lark": matcher.grammar_from_lark,
        }[constraint.kind](constraint.text)
        if problem := matcher.validate_grammar(grammar, self._tokenizer):
            raise InvalidRequest(f"The grammar cannot be used: {problem.splitlines()[0]}")


class ScriptedSource:
    """Plays `script` for every request, at most `slots` at a time; the others wait as if queued."""

    def __init__(self, script: Sequence[Step] = ("Hello", " wor", "ld", "."), slots: int = 2) -> None:
        self.script = script
        self.refusal: NodeError | None = None
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.held: list[tuple[str, bool]] = []
        self.played = 0
        self.cancel_seen = asyncio.Event()
        self._slots = asyncio.Semaphore(slots)
        self._running: dict[str, tuple[asyncio.Task[None], Sink, Request]] = {}

    def submit(self, request: Request, sink: Sink) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)
        task = asyncio.get_running_loop().create_task(self._run(request, sink))
        self._running[request.id] = (task, sink, request)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.cancel_seen.set()
        if entry := self._running.pop(request_id, None):
            task, sink, request = entry
            task.cancel()
            sink(Finished("cancelled", len(request.prompt), 0))

    def hold(self, request_id: str, held: bool) -> None:
        self.held.append((request_id, held))

    @property
    def busy(self) -> int:
        return len(self._running)

    async def _run(self, request: Request, sink: Sink) -> None:
        async with self._slots:
            await asyncio.sleep(0)  # a sink is never called from inside `submit`
            sink(Started(cached_tokens=min(2, len(request.prompt))))
            await (self._embed if request.kind == "embed" else self._generate)(request, sink)
        self._running.pop(request.id, None)

    async def _embed(self, request: Request, sink: Sink) -> None:
        await asyncio.sleep(0)
        sink(Embedded((1.0, float(len(request.prompt)), -0.5), len(request.prompt)))

    async def _generate(self, request: Request, sink: Sink) -> None:
        made = 0
        for step in self.script:
            if isinstance(step, NodeError):
                sink(Failed(step))
                return
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, float | int):
                await asyncio.sleep(step)
            else:
                made += 1
                self.played += 1
                sink(_token(made, step, request.logprobs))
                await asyncio.sleep(0)
            if made == request.max_tokens:
                sink(Finished("length", len(request.prompt), made))
                return
        sink(Finished("stop", len(request.prompt), made))


def _token(id: int, step: bytes | str, alternatives: int | None) -> Token:
    piece = step.encode() if isinstance(step, str) else step
    if alternatives is None:
        return Token(id, piece)
    top = tuple((97 + rank, -0.5 - rank) for rank in range(alternatives))
    return Token(id, piece, Logprob(-0.25, top))


@dataclass
class ScriptedAdmission:
    """Lets everything through as it is, unless a test says otherwise."""

    recalls: bool = False
    most_tokens: int | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    def shape(self, request: Request) -> tuple[Request, tuple[str, ...]]:
        if self.most_tokens is None:
            return request, ()
        return replace(request, max_tokens=min(request.max_tokens, self.most_tokens), logprobs=None), ("shorten",)

    def headers(self, request_id: str) -> Callable[[], Mapping[str, str]]:
        return lambda: self.told


@dataclass
class ScriptedPrewarming:
    """Rows as they are given; forgetting them is counted."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    forgot: int = 0

    def why(self) -> list[dict[str, Any]]:
        return self.rows

    async def forget(self) -> int:
        known, self.rows, self.forgot = len(self.rows), [], self.forgot + 1
        return known


@dataclass
class ScriptedService:
    """What the server serves in tests."""

    source: TokenSource = field(default_factory=ScriptedSource)
    model: Model = field(default_factory=ByteModel)
    admission: ScriptedAdmission = field(default_factory=ScriptedAdmission)
    prewarm: Prewarming = field(default_factory=ScriptedPrewarming)
    sampling: Sampling = field(default_factory=lambda: Sampling(**msgspec.structs.asdict(SamplingDefaults())))
    ready: bool = True
    draining: bool = False

    async def settled(self) -> None:
        pass

    async def activate(self, model: str, profile: str, probation_s: float) -> Mapping[str, Any]:
        return {"state": "check", "to": profile or model, "probation_s": probation_s}

    def source_of(self, model: Model) -> TokenSource:
        return self.source

    def load(self) -> Load:
        return Load(running=1, waiting=2, kv_used=30, kv_total=400, threads=3, drafted=12, accepted=7)

    def warmth(self) -> Warmth:
        return Warmth(4, 3, 1000, 900, 2.5, 5 << 20, 7 << 20, 2, 1, 1)

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        return {"model": {"id": self.model.info.id}, "kv": {"used": 30, "total": 400}}


def scripted(*script: Step, slots: int = 2, **info: Any) -> tuple[ScriptedService, ScriptedSource]:
    """A service that answers every request with `script`; `info` changes the model's."""
    source = ScriptedSource(script, slots) if script else ScriptedSource(slots=slots)
    return ScriptedService(source, ByteModel(replace(INFO, **info))), source


@contextlib.asynccontextmanager
async def running(service: ScriptedService, **server: Any) -> AsyncIterator[tuple[str, web.AppRunner]]:
    """The application on a real port, run the way the runtime runs it; yields its address and the runner."""
    async with _listening(create_app(Settings(server=Server(**server)), service)) as parts:
        yield parts


@contextlib.asynccontextmanager
async def running_app(app: web.Application) -> AsyncIterator[str]:
    """Any application on a real port; yields its address."""
    async with _listening(app) as (url, _):
        yield url


@contextlib.asynccontextmanager
async def _listening(app: web.Application) -> AsyncIterator[tuple[str, web.AppRunner]]:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", runner
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def serving(service: ScriptedService, **server: Any) -> AsyncIterator[str]:
    """`running` for those who only need the address."""
    async with running(service, **server) as (url, _):
        yield url
