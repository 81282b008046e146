"""Retries: another attempt at the same request joins the generation that the first attempt began.

Two things make an attempt the same: an `Idempotency-Key` sent by the client, or, for clients that mark their retries,
the same body to the same route. The table is bounded in number and age. Pure: time comes in as `now`, in seconds. A key
belongs to whoever sent it: its owner's credentials are part of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from node.errors import InvalidRequest
from node.server.work import Running

MAX_KEY_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Key:
    """Whose key it is, and the digest of what they asked for with it."""

    owner: bytes
    content: bytes


def key_of_body(authorization: str, path: str, body: bytes) -> Key:
    """The key of a request without one: what it says."""
    content = hashlib.sha256(path.encode() + b"\0" + body).digest()
    return Key(hashlib.sha256(authorization.encode("utf-8", "surrogateescape") + content).digest(), content)


def key_of(idempotency_key: str, authorization: str, path: str, body: bytes) -> Key:
    """The table's key for a request; raises InvalidRequest for an absurd one."""
    if len(idempotency_key) > MAX_KEY_CHARACTERS:
        raise InvalidRequest(
            f"`Idempotency-Key` has more than {MAX_KEY_CHARACTERS} characters.", param="Idempotency-Key"
        )
    owner = f"{authorization}\0{idempotency_key}".encode("utf-8", "surrogateescape")
    return Key(hashlib.sha256(owner).digest(), hashlib.sha256(path.encode() + b"\0" + body).digest())


class Replays:
    """At most `limit` generations, each for `keep_s` seconds after it was begun."""

    def __init__(self, limit: int = 32, keep_s: float = 120.0) -> None:
        self._limit = limit
        self._keep_s = keep_s
        self._entries: dict[bytes, tuple[bytes, Running, float]] = {}

    def find(self, key: Key, now: float) -> Running | None:
        """The generation begun with `key`; raises InvalidRequest if it was begun for something else."""
        self._expire(now)
        content, running, _ = self._entries.get(key.owner, (b"", None, 0.0))
        if running is not None and content != key.content:
            raise InvalidRequest("This `Idempotency-Key` was used for another request.", param="Idempotency-Key")
        return running

    def keep(self, key: Key, running: Running, now: float) -> None:
        """Remember a generation; the oldest gives way."""
        self._expire(now)
        self._entries.pop(key.owner, None)  # so that the order is one of age
        self._entries[key.owner] = (key.content, running, now)
        while len(self._entries) > self._limit:
            del self._entries[next(iter(self._entries))]

    def drop(self, running: Running) -> None:
        """Forget a generation that has no whole answer: the next attempt starts anew."""
        self._entries = {owner: entry for owner, entry in self._entries.items() if entry[1] is not running}

    def _expire(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if now - self._entries[oldest][2] < self._keep_s:
                return
            del self._entries[oldest]
