"""A request that is ready to run, and a generation that runs: what the handlers hand to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.generation import Request
from node.server.callers import PRIORITY
from node.server.replies import Reply
from node.stream.session import Session

STREAM_ID = "Outpost-Stream"


@dataclass(frozen=True, slots=True)
class Work:
    """A request that is ready to run; `reply` makes a fresh answer for each reader.

    `origin` is all that another life of this node needs to make `reply` again.
    """

    request: Request
    reply: Callable[[], Reply]
    stream: bool
    origin: bytes = b""


@dataclass(slots=True)
class Running:
    """A submitted request and how many connections read it. A resumable one goes on without any."""

    work: Work
    session: Session
    owner: bytes = b""
    resumable: bool = False
    readers: int = 0
    counted: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """What its responses say of it before the first byte."""
        request = self.work.request
        return {PRIORITY: request.level, **({STREAM_ID: request.id} if self.resumable else {})}
