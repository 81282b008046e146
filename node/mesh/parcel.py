"""What an outbox sends to its hub and what the hub answers; pure.

A parcel is one zstd frame of a msgpack map: {"node": ID, "items": [{"id", "key", "stream", "priority", "created",
"sha256", "body"}, …]}, sent as `application/x-outpost-parcel` to /v1/hub/outbox. The answer is the JSON object
{"accepted": [ID, …]}: the ids that are safe now, those that came before included. Both come from outside and are
bounded before anything is allocated for them: a frame that unfolds to more than it may is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import zstandard

from node.errors import InvalidRequest, TooLarge
from node.store.backlog import Priority
from node.store.outbox import Item

PATH: Final = "/v1/hub/outbox"
MESH_PATH: Final = "/mesh/outbox"  # the same among neighbours, whose certificates say who they are
TYPE: Final = "application/x-outpost-parcel"
MOST_PACKED: Final = 8 << 20
MOST_UNPACKED: Final = 32 << 20
MOST_ITEMS: Final = 5000
MOST_ANSWER: Final = 512 << 10
_WINDOW: Final = 8 << 20

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}\Z")]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item on its way."""

    id: Name
    key: Key
    stream: Name
    priority: Priority
    created: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    sha256: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    body: bytes


class Parcel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several items of one node, in order."""

    node: Name
    items: Annotated[list[Sent], msgspec.Meta(max_length=MOST_ITEMS)]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Which ids are safe at the hub."""

    accepted: Annotated[list[Name], msgspec.Meta(max_length=MOST_ITEMS)]


_parcel = msgspec.msgpack.Decoder(Parcel)
_receipt = msgspec.json.Decoder(Receipt)


def pack(node: str, items: Sequence[Item]) -> bytes:
    """A parcel with these items."""
    sent = [
        Sent(
            id=item.id,
            key=item.key,
            stream=item.stream,
            priority=item.priority,
            created=item.created,
            sha256=_digest(item.body),
            body=item.body,
        )
        for item in items
    ]
    return zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(Parcel(node=node, items=sent)))


def unpack(raw: bytes) -> Parcel:
    """What `pack` made; raises InvalidRequest or TooLarge."""
    if len(raw) > MOST_PACKED:
        raise TooLarge(f"A parcel may have {MOST_PACKED} bytes.")
    try:
        parcel = _parcel.decode(_unfold(raw))
    except zstandard.ZstdError as error:
        raise InvalidRequest("The body is no zstd frame, or a broken one.") from error
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"The body is no parcel: {error}") from error
    for item in parcel.items:
        if _digest(item.body) != item.sha256:
            raise InvalidRequest(f"The item {item.id} does not match its digest.")
    return parcel


def accepted(raw: bytes, sent: Sequence[str]) -> list[str] | None:
    """Which of the sent ids a hub has; None where this is no hub's answer."""
    try:
        receipt = _receipt.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    known = set(receipt.accepted)
    return [id for id in sent if id in known]


def receipt(ids: Sequence[str]) -> bytes:
    """The answer that says that these are safe."""
    return msgspec.json.encode(Receipt(accepted=list(ids)))


def _unfold(raw: bytes) -> bytes:
    """Stepwise, so that a bomb is noticed before it has gone off."""
    unfolding: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(raw)
    data: bytes = unfolding.read(MOST_UNPACKED + 1)
    if len(data) > MOST_UNPACKED:
        raise TooLarge(f"A parcel may unfold to {MOST_UNPACKED} bytes.")
    return data


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
