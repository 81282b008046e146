"""What a reply's chunks mean: mostly plain text, one entry a chunk, as few bytes as possible. Pure.

A chunk is

- UTF-8 text: the next entry of the answer. An empty one is an entry without text of its own.
- 0xC1 and bytes: a message, JSON as on the WebSocket (`server/wsproto`): what is not plain text, and always the first
  (`accepted`) and the last (`finish`, `interrupted` or `error`).
- 0xC0 and bytes: the beginning of a message that is longer than a chunk; the next chunk goes on with it.

0xC0 and 0xC1 begin no UTF-8 text. A request is the same: its messages are cut into chunks without any mark.
"""

from __future__ import annotations

from collections.abc import Iterator

from node.errors import LinkError
from node.link.sender import MAX_CHUNK

MESSAGE, BEGUN = 0xC1, 0xC0
MAX_MESSAGE = 1 << 20


def pieces(message: bytes) -> Iterator[bytes]:
    """A message as the chunks of a reply."""
    size = MAX_CHUNK - 1
    while len(message) > size:
        yield bytes((BEGUN,)) + message[:size]
        message = message[size:]
    yield bytes((MESSAGE,)) + message


def cut(request: bytes) -> Iterator[bytes]:
    """A request as chunks."""
    for at in range(0, len(request), MAX_CHUNK):
        yield request[at : at + MAX_CHUNK]


class Words:
    """Puts a reply's chunks together again; holds at most MAX_MESSAGE bytes."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def take(self, chunk: bytes) -> str | bytes | None:
        """An entry's text, a whole message, or None where a message is not whole yet; raises LinkError."""
        if not chunk or chunk[0] not in (MESSAGE, BEGUN):
            if self._begun:
                raise LinkError("A message stops in its middle.")
            try:
                return chunk.decode()
            except UnicodeDecodeError as error:
                raise LinkError("A chunk is neither text nor a message.") from error
        if len(self._begun) + len(chunk) > MAX_MESSAGE:
            raise LinkError(f"A message of more than {MAX_MESSAGE} bytes.")
        self._begun += chunk[1:]
        if chunk[0] == BEGUN:
            return None
        whole = bytes(self._begun)
        self._begun.clear()
        return whole
