"""The contract every engine keeps, and the one place that knows which engines exist."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from node.engine.answers import Answers
from node.engine.blocks import BlockStore, Ids, Owner
from node.generation import Event, Model, Request
from node.settings import Engine as EngineSettings


class EngineLoad(NamedTuple):
    """Requests that are not ended, those of them that are not held, and the KV cache's cells: in use, and all.

    `threads` decode on the CPU just now; fewer than there might be while other processes want the cores. `drafted`
    tokens were guessed and checked so far, and `accepted` of them were right.
    """

    requests: int
    active: int
    kv_used: int
    kv_total: int
    threads: int = 1
    drafted: int = 0
    accepted: int = 0


class Warming(Protocol):
    """What an engine does with the warm prefixes in its store besides beginning requests with them."""

    @property
    def prefill_s(self) -> float:
        """Seconds that reading one more token of a prompt takes while nothing streams, as measured; above 0."""

    def read(self, owner: Owner, ids: Ids) -> int:
        """Read a bounded next piece of `ids` into the store, while no request runs; gives how many are there then."""

    def export(self, owner: Owner, ids: Ids) -> tuple[bytes, ...] | None:
        """The states of the blocks of `ids`, for a disk; None unless all of it is in the store."""


class Threads(Protocol):
    """The CPU threads of an engine that can do with fewer."""

    def limit(self, most: int | None) -> None:
        """At most so many from now on; None for as many as it was made with."""


class Engine(Protocol):
    """Runs many requests at once, one step at a time. Owned by one thread: only `model` may be used from others.

    Up to `model.info.slots` requests run, and up to `model.info.parked` more may be held beside them. Whoever adds and
    holds keeps count: a held request has left its slot to others, and needs a free one to go on.

    It begins requests with what its store has of their prompts, and leaves there what it read. `warm` is None where it
    cannot, or has no store. `cores` is None where the number of threads cannot be changed, `answers` where past answers
    are not guessed from.
    """

    model: Model
    warm: Warming | None
    cores: Threads | None
    answers: Answers | None

    @property
    def load(self) -> EngineLoad:
        """How busy it is; with any active request, `step` makes progress."""

    def add(self, request: Request) -> None:
        """Take a request; it joins at the next step. Needs a fresh id and a prompt that fits.

        Raises EngineFailed, and takes nothing, when all slots are taken or there are slots + parked requests already.
        """

    def cancel(self, request_id: str) -> None:
        """Free what a request holds, at once; its last event, `Finished("cancelled")`, comes from the next step."""

    def hold(self, request_id: str, held: bool) -> None:
        """Leave a request out of the steps, which frees its slot, or take it in again, which needs a free one.

        What was read of a held request stays in the cache while the others can work without that room; else it is read
        again later. Its text is the same either way. Holding never fails; going on raises EngineFailed, and the request
        stays held, when all slots are taken. Unknown ids, and what is so already, are ignored.
        """

    def step(self) -> list[tuple[str, Event]]:
        """Do one bounded piece of work for all requests; gives what happened, by request id, in order."""

    def fail_all(self) -> list[str]:
        """After `step` raised: forget every request, clear all state, and give the ids of those that were lost."""

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards."""


def open_engine(
    settings: EngineSettings,
    name: str,
    weights: Path | None,
    store: BlockStore | None = None,
    answers: Answers | None = None,
) -> Engine:
    """Load an engine with its model; slow, and raises ModelFileError. `weights` is a file, for `onnx` a folder.

    `echo` needs none. `answers` belong to the engine's thread from then on. `onnx` has no use for them and the store.
    """
    if settings.kind == "echo":
        from node.engine.echo import EchoEngine

        return EchoEngine(settings, name, store)
    assert weights is not None, "all others need a model"
    if settings.kind == "onnx":
        from node.engine.onnx import OnnxEngine

        return OnnxEngine(settings, name, weights)
    from node.engine.llama import LlamaEngine

    return LlamaEngine(settings, name, weights, store, answers)
