"""What a link tells its application, as values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

Address = Hashable


@dataclass(frozen=True, slots=True)
class Opened:
    slot: int


@dataclass(frozen=True, slots=True)
class Came:
    """A chunk, the next in order."""

    slot: int
    number: int
    chunk: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The whole text has come and is right; or, not `whole`, it is wrong and stays so."""

    slot: int
    whole: bool
    meta: bytes = b""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The other end has the whole text; or, not `whole`, it found it wrong."""

    slot: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The other end wants no more of this slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The other end has a new address."""

    address: Address


@dataclass(frozen=True, slots=True)
class Closed:
    reason: int


Event = Opened | Came | Ended | Delivered | Stopped | Moved | Closed
