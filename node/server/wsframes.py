"""A WebSocket's messages as full frames (`link.frame`): short, checked by their CRC-32, and read without MessagePack.

With the subprotocol `outpost.v1.frame` each binary message of the node is one frame:

- DATA: text of an answer whose REF is a number. `stream` is that REF, `seq` the entry's number as in `token`, the
  payload the text.
- CTRL: any other message as JSON, `stream` its REF where that is a number; INTERRUPT marks `interrupted`. One of more
  than 65,535 bytes comes as JSON in a text frame.

What a client says is as on every other connection: JSON in text frames, MessagePack in binary ones.
"""

from __future__ import annotations

from node.link.frame import MAX_PAYLOAD, NO_FLAGS, Flag, Frame, Kind
from node.link.frame import encode as encode_frame
from node.server import wsproto
from node.server.wsproto import Interrupted, Token, Told


def encode(message: Told) -> bytes | None:
    """A message as a frame; None where it is longer than a frame can be."""
    ref = getattr(message, "id", None)
    stream = ref if isinstance(ref, int) else 0
    if isinstance(message, Token) and isinstance(ref, int) and (text := _plain(message)) is not None:
        return encode_frame(Frame(Kind.DATA, stream, message.seq, text))
    flags = Flag.INTERRUPT if isinstance(message, Interrupted) else NO_FLAGS
    told = wsproto.encode(message, binary=False)
    return encode_frame(Frame(Kind.CTRL, stream, 0, told, flags)) if len(told) <= MAX_PAYLOAD else None


def _plain(message: Token) -> bytes | None:
    """The text of a message that is nothing else."""
    text = message.delta.get("content") if message.logprobs is None and len(message.delta) == 1 else None
    encoded = text.encode() if isinstance(text, str) else None
    return encoded if encoded is not None and len(encoded) <= MAX_PAYLOAD else None
