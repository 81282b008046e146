"""An engine without a model: it answers with the prompt's own text, word by word. For tests, wiring and load.

It keeps the whole contract: slots, chunked prompts, cancel, limits, stop by end of text, constraints (refused), seeds
(the answer does not depend on them), logprobs (certain), embeddings (a hash of the text), warm prefixes (the state of
a block is its text, and a foreign one is an error). Its tokens are bytes, so that every kind of split character occurs.
"""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from node.engine import seats
from node.engine.answers import Answers
from node.engine.base import EngineLoad, Threads, Warming
from node.engine.blocks import BLOCK, BlockStore, Ids, Owner, block_start
from node.errors import EngineFailed, Unsupported
from node.generation import (
    Constraint,
    Embedded,
    Event,
    Finished,
    Logprob,
    Model,
    ModelInfo,
    Request,
    Started,
    Token,
)
from node.settings import Engine as EngineSettings

STEP_S = 0.0002  # without any pause it would answer whole in the time that its readers need for one token
_CONTEXT = 8192
_EMBEDDING_SIZE = 16


class EchoModel:
    """Tokens are the bytes of the text, numbered 0 to 255."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> bytes:
        return bytes(ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The last user message is what will be echoed."""
        users = [message["content"] or "" for message in messages if message["role"] == "user"]
        return self.encode(users[-1] if users else " ") or self.encode(" ")

    def check(self, constraint: Constraint) -> None:
        raise Unsupported("The echo engine cannot constrain its answer.", param="response_format")


class EchoEngine:
    """Echoes each prompt, one byte a step; reads prompts in chunks of `CHUNK` bytes."""

    CHUNK = 512

    def __init__(self, settings: EngineSettings, name: str, store: BlockStore | None = None) -> None:
        context = settings.context or _CONTEXT
        slots, parked = settings.slots, seats.parked(settings.slots)
        info = ModelInfo(name, "echo", 0, context, slots, 256, _EMBEDDING_SIZE, can_chat=True, parked=parked)
        self._slots = slots
        self.model: Model = EchoModel(info)
        self._cells = max(settings.kv_tokens, context)
        self._step_s = 1 / settings.echo_rate if settings.echo_rate else 0.0
        self._due = 0.0  # when the last step should have begun
        self._requests: dict[str, Request] = {}
        self._done: dict[str, int] = {}  # prompt bytes read + bytes answered
        self._cancelled: list[tuple[str, Event]] = []
        self._held: set[str] = set()
        self._warm = EchoWarm(store) if store else None
        self.warm: Warming | None = self._warm
        self.cores: Threads | None = None
        self.answers: Answers | None = None
        self._cached: dict[str, int] = {}  # prompt bytes that need not be read, until the prompt is begun

    def add(self, request: Request) -> None:
        seats.need_slot(len(self._requests) - len(self._held), self._slots)
        seats.need_seat(len(self._requests), self._slots)
        self._requests[request.id] = request
        warm = self._warm.begin(request) if self._warm and request.kind == "generate" else 0
        self._done[request.id] = self._cached[request.id] = warm  # the rest is read, and what was answered with it

    def cancel(self, request_id: str) -> None:
        if request := self._requests.get(request_id):
            answered = max(0, self._done[request_id] - len(request.prompt))
            self._cancelled.append((request_id, Finished("cancelled", len(request.prompt), answered)))
            self._forget(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        if held and request_id in self._requests:
            self._held.add(request_id)
        elif request_id in self._held:
            seats.need_slot(len(self._requests) - len(self._held), self._slots)
            self._held.discard(request_id)

    def step(self) -> list[tuple[str, Event]]:
        events, self._cancelled = self._cancelled, []
        active = [request for request in self._requests.values() if request.id not in self._held]
        if active:
            self._pause(time.monotonic())
        for request in active:
            events += [(request.id, event) for event in self._advance(request)]
        return events

    def fail_all(self) -> list[str]:
        lost = list(self._requests)
        self._requests.clear()
        self._done.clear()
        self._cancelled.clear()
        self._held.clear()
        self._cached.clear()
        return lost

    @property
    def load(self) -> EngineLoad:
        # A cancelled request counts as active: the next step has its end to tell.
        active = len(self._requests) - len(self._held) + len(self._cancelled)
        return EngineLoad(len(self._requests), active, sum(self._done.values()), self._cells)

    def close(self) -> None:
        self.fail_all()

    def _pause(self, now: float) -> None:
        """Wait until the next step is due; a short delay is made up for, so that the rate is kept."""
        self._due = max(self._due + self._step_s, now - self._step_s) if self._step_s else now + STEP_S
        time.sleep(max(0.0, self._due - now))

    def _forget(self, request_id: str) -> None:
        request, done = self._requests.pop(request_id), self._done.pop(request_id)
        if self._warm and request.kind == "generate":
            self._warm.keep(request, done)
        self._cached.pop(request_id, None)
        self._held.discard(request_id)

    def _advance(self, request: Request) -> list[Event]:
        """One chunk of the prompt, or one byte of the answer."""
        size = len(request.prompt)
        done = self._done[request.id]
        cached = self._cached.pop(request.id, None)
        events: list[Event] = [] if cached is None else [Started(cached)]
        if done < size:
            done = self._done[request.id] = min(size, done + self.CHUNK)
            if done < size:
                return events
            done = self._done[request.id] = size + len(request.continued)
        if request.kind == "embed":
            self._forget(request.id)
            return [*events, Embedded(_hash_vector(bytes(request.prompt)), size)]
        answered = done - size
        token = request.prompt[answered % size]
        self._done[request.id] += 1
        logprob = None if request.logprobs is None else Logprob(0.0, ((token, 0.0),) * min(1, request.logprobs))
        events.append(Token(token, bytes([token]), logprob))
        at_end = answered + 1 == size and not request.ignore_eos
        if at_end or answered + 1 == request.max_tokens:
            self._forget(request.id)
            events.append(Finished("stop" if at_end else "length", size, answered + 1))
        return events


class EchoWarm:
    """The state of a block is its tokens. See `base.Warming`."""

    prefill_s = STEP_S / 512

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def begin(self, request: Request) -> int:
        """How much of the prompt is warm; one byte is always left to read."""
        ids = np.array(request.prompt[:-1], np.int32)
        match = self._store.match(self._store.owner(request.caller.tenant), ids)
        if not b"".join(match.blocks).startswith(ids[: match.tokens].tobytes()):
            raise EngineFailed("This state belongs to other tokens.")
        return match.tokens

    def keep(self, request: Request, done: int) -> None:
        """Keep what was read, and what was answered."""
        prompt = request.prompt
        answer = (prompt[at % len(prompt)] for at in range(done - len(prompt)))
        ids = np.array([*prompt[:done], *answer], np.int32)
        owner = self._store.owner(request.caller.tenant)
        for end in range(BLOCK, len(ids) + BLOCK, BLOCK):
            self._store.put(owner, ids[:end], ids[end - BLOCK : end].tobytes())

    def read(self, owner: Owner, ids: Ids) -> int:
        """One block at a time."""
        known = self._store.length(owner, ids)
        if known == len(ids):
            return known
        end = min(known // BLOCK * BLOCK + BLOCK, len(ids))
        self._store.put(owner, ids[:end], ids[block_start(end) : end].tobytes())
        return self._store.length(owner, ids)

    def export(self, owner: Owner, ids: Ids) -> tuple[bytes, ...] | None:
        """Cut to `ids`."""
        if self._store.length(owner, ids) < len(ids):
            return None
        return tuple(ids[at : at + BLOCK].tobytes() for at in range(0, len(ids), BLOCK))


def _hash_vector(text: bytes) -> tuple[float, ...]:
    """A unit vector that only equal texts share."""
    numbers = struct.unpack(f"<{_EMBEDDING_SIZE}H", hashlib.sha256(text).digest())
    centred = [number - 32767.5 for number in numbers]
    norm = math.sqrt(sum(number * number for number in centred))
    return tuple(number / norm for number in centred)
