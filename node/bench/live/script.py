"""What both ends of a scheme do in a cell: so many replies by so many readers at once, and what they write down.

A reply's text follows from its number, so that a reader knows it. Times are of the machine's one monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from node.bench.linkworld import Talk

_STAGGER_S = 0.137  # between the readers' beginnings: they must not talk in step
_PAUSE_S = 0.3
_READER = 1000


class Script(msgspec.Struct, frozen=True):
    """`talk.replies` counted replies for each of `readers`, after one that is not counted."""

    scheme: str
    port: int
    talk: Talk
    readers: int = 1
    deadline_s: float = 120.0
    priority: bool = False  # before all other work of the machine


@dataclass(slots=True)
class Log:
    """What one end saw: when chunks were made or came, by reply, and which replies came as they were sent."""

    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole: list[int] = field(default_factory=list)


def number(reader: int, turn: int) -> int:
    """A reply's number; turn 0 is the one that is not counted."""
    return reader * _READER + turn


def counted(reply: int) -> bool:
    """Whether a reply is."""
    return reply % _READER > 0


def text(reply: int, size: int, at: int) -> bytes:
    """A reply's chunk."""
    return b"%0*d" % (size, (reply * 7919 + at) % 10**size)


def whole_text(reply: int, talk: Talk) -> bytes:
    """All of them."""
    return b"".join(text(reply, talk.size, at) for at in range(talk.chunks))


async def make(reply: int, talk: Talk, log: Log, say: Callable[[bytes], None]) -> None:
    """Make a reply at its pace."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for at in range(talk.chunks):
        await asyncio.sleep(start + (at + 1) / talk.rate - loop.time())
        log.times[reply].append(loop.time())
        say(text(reply, talk.size, at))


def turns(script: Script, reader: int) -> Iterator[int]:
    """The numbers of one reader's replies."""
    for turn in range(script.talk.replies + 1):
        yield number(reader, turn)


async def stagger(reader: int) -> None:
    """Wait for one's turn to begin."""
    await asyncio.sleep(reader * _STAGGER_S)


async def pause() -> None:
    """What a person needs between an answer and the next question."""
    await asyncio.sleep(_PAUSE_S)
