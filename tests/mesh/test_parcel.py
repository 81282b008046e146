"""The form of deliveries: what is packed is unpacked, and what is none is refused before it costs anything."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from node.errors import InvalidRequest, TooLarge
from node.mesh import parcel
from node.store.outbox import Item

ITEM = Item("0190-a", "k", "report", "status", 5.0, 0, b"body")


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.sampled_from(["alarm", "status", "telemetry", "log"])), max_size=20)
)
def test_what_is_packed_is_unpacked(bodies: list[tuple[bytes, str]]) -> None:
    items = [
        Item(f"id{n}", f"key {n}", "s", priority, 1.5 * n, 0, body)  # type: ignore[arg-type]
        for n, (body, priority) in enumerate(bodies)
    ]
    found = parcel.unpack(parcel.pack("node1", items))
    assert found.node == "node1"
    assert [(one.id, one.key, one.stream, one.priority, one.created, one.body) for one in found.items] == [
        (one.id, one.key, one.stream, one.priority, one.created, one.body) for one in items
    ]


def packed(**changes: object) -> bytes:
    """A parcel with something wrong in it."""
    tree = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(parcel.pack("node1", [ITEM])))
    for key, value in changes.items():
        if key == "node":
            tree["node"] = value
        else:
            tree["items"][0][key] = value
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(tree))


@pytest.mark.parametrize(
    "changes",
    [
        {"node": ""},
        {"node": "a" * 200},
        {"node": "../../etc"},
        {"node": 5},
        {"id": "a b"},
        {"key": ""},
        {"key": "k" * 300},
        {"stream": "x\ny"},
        {"priority": "urgent"},
        {"created": -1.0},
        {"created": float("nan")},
        {"sha256": b"short"},
        {"sha256": bytes(32)},
        {"body": "text"},
        {"unknown": 1},
    ],
)
def test_a_parcel_with_something_wrong_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        parcel.unpack(packed(**changes))


@pytest.mark.parametrize("raw", [b"", b"<html>", b"\x28\xb5\x2f\xfd", bytes(100), b'{"node": "x"}'])
def test_what_is_no_parcel_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parcel.unpack(raw)


def test_a_cut_parcel_is_refused() -> None:
    whole = parcel.pack("node1", [ITEM] * 3)
    for end in range(len(whole)):
        with pytest.raises(InvalidRequest):
            parcel.unpack(whole[:end])


def test_bombs_do_not_go_off() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(parcel.MOST_UNPACKED * 4))
    assert len(bomb) < parcel.MOST_PACKED
    with pytest.raises(TooLarge, match="unfold"):
        parcel.unpack(bomb)
    with pytest.raises(TooLarge):
        parcel.unpack(bytes(parcel.MOST_PACKED + 1))


def test_a_receipt_names_only_what_was_sent() -> None:
    assert parcel.accepted(parcel.receipt(["a", "b"]), ["b", "c"]) == ["b"]
    assert parcel.accepted(parcel.receipt([]), ["b"]) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>Please log in</html>",
        b"{}",
        b"[]",
        b'{"accepted": "all"}',
        b'{"accepted": [1]}',
        b"\xff\xfe",
        b"null",
    ],
)
def test_what_is_no_receipt_is_told_apart(answer: bytes) -> None:
    assert parcel.accepted(answer, ["a"]) is None
