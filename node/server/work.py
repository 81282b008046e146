"""A request that is ready to run, and a generation that runs: what the handlers hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.generation import Model, Request
from node.server.callers import CACHED, PRIORITY
from node.server.replies import Reply
from node.stream.session import Session

STREAM_ID = "Outpost-Stream"
DEGRADED = "Outpost-Degraded"


@dataclass(frozen=True, slots=True)
class Work:
    """A request that is ready to run; `reply` makes a fresh answer for each reader, marked if it was given before.

    `origin` is all that another life of this node needs to make `reply` again. `degraded` names what the load cost it,
    `question` is what its answer may be remembered by, if it may. `model` made its tokens; None is the one there is.
    """

    request: Request
    reply: Callable[[bool], Reply]
    stream: bool
    origin: bytes = b""
    degraded: tuple[str, ...] = ()
    question: bytes = b""
    model: Model | None = None


@dataclass(slots=True)
class Running:
    """A submitted request and how many connections read it. A resumable one goes on without any.

    `limits` gives headers on what its caller may still use; `cached_s` is the age of an answer that was given before.
    """

    work: Work
    session: Session
    owner: bytes = b""
    resumable: bool = False
    readers: int = 0
    counted: bool = False
    limits: Callable[[], Mapping[str, str]] = dict
    cached_s: float | None = None

    def reply(self) -> Reply:
        """A fresh answer, for one more reader."""
        return self.work.reply(self.cached_s is not None)

    @property
    def headers(self) -> dict[str, str]:
        """What a response says of it before the first byte, now."""
        request = self.work.request
        told = {PRIORITY: request.level, **self.limits()}
        if self.work.degraded:
            told[DEGRADED] = ", ".join(self.work.degraded)
        if self.cached_s is not None:
            told[CACHED] = f"{self.cached_s:.0f}"
        if self.resumable:
            told[STREAM_ID] = request.id
        return told
