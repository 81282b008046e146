"""The client's half of the WebSocket protocol, without I/O: messages to send, and received ones as chunks.

The protocol is specified in `server/wsproto.py`. A WebSocket carries one answer here, named 0; on a link
the name is the slot's number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from node.chunks import BrokenStream, Choice, Chunk, ClientError, Cursor, Delta, SaidError, SaidUsage, error_from

Maker = Callable[[int], bytes]


class _Message(msgspec.Struct):
    type: str
    stream: str = ""
    seq: int = -1
    delta: Delta | None = None
    reason: str | None = None
    usage: SaidUsage | None = None
    error: SaidError | None = None
    status: int = 500
    retry_after: float | None = None


_decode = msgspec.json.Decoder(_Message).decode


def request(body: Mapping[str, Any], *, resumable: bool, key: str | None, ref: int = 0) -> bytes:
    """Asks for a new answer; raises UnicodeEncodeError for a lone surrogate."""
    said = {"type": "request", "id": ref, "route": "chat", "body": body, "resumable": resumable, "key": key}
    return msgspec.json.encode(said)


def resume(stream: str, start: int, crc: str = "", ref: int = 0) -> bytes:
    """Asks for the entries of an answer from number `start` on; `crc` is that of the text before, where known."""
    return msgspec.json.encode({"type": "resume", "id": ref, "stream": stream, "from": start, "crc": crc})


class Reading:
    """One answer out of its messages: `stream` is its id once it is accepted, `ended` says that it is whole."""

    def __init__(self) -> None:
        self.stream = ""
        self.ended = False

    def take(self, text: str) -> Chunk | None:
        """What one message says of the answer; raises the error that it carries."""
        try:
            message = _decode(text)
        except msgspec.DecodeError as error:
            raise BrokenStream(f"The node sent a message that is none ({error}).") from error
        if message.type == "token":
            return Chunk(choices=[Choice(message.delta or Delta())], outpost=Cursor(message.seq))
        if message.type == "accepted":
            self.stream = message.stream
        elif message.type == "finish":
            self.ended = True
            # Without a number: what was held back comes only here, and is never a repetition.
            return Chunk(
                choices=[Choice(message.delta or Delta(), message.reason)], usage=message.usage, id=self.stream
            )
        elif message.type == "rewind":
            return Chunk(outpost=Cursor(message.seq, rewind=True))
        elif message.type == "interrupted":
            raise ClientError("The answer was stopped before its end.")
        elif message.type == "error":
            seconds = None if message.retry_after is None else max(1, round(message.retry_after))
            raise error_from(message.status, message.error or SaidError(), seconds)
        return None
