"""The wire format: everything that is written comes back, nothing that is cut or wrong is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine import protobuf
from node.errors import ModelFileError
from tests.support.onnx_bytes import field, varint

NUMBERS = st.integers(1, (1 << 29) - 1)
VALUES = st.one_of(st.integers(0, (1 << 64) - 1), st.binary(max_size=300))


@given(st.lists(st.tuples(NUMBERS, VALUES), max_size=20))
def test_what_is_written_comes_back(written: list[tuple[int, int | bytes]]) -> None:
    message = b"".join(field(number, value) for number, value in written)
    read = [(n, bytes(v) if isinstance(v, memoryview) else v) for n, v in protobuf.fields(memoryview(message))]
    assert read == written


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(message: bytes) -> None:
    try:
        for _, value in protobuf.fields(memoryview(message)):
            assert isinstance(value, int) or len(value) <= len(message)
    except ModelFileError:
        pass


def test_fixed_numbers_are_numbers() -> None:
    message = varint(1 << 3 | 5) + (7).to_bytes(4, "little") + varint(2 << 3 | 1) + (9).to_bytes(8, "little")
    assert list(protobuf.fields(memoryview(message))) == [(1, 7), (2, 9)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (field(1, b"abc")[:-1], "truncated: a field of 3 bytes begins where 2 are left"),
        (varint(1 << 3 | 2) + varint(1 << 40), "truncated"),
        (varint(1 << 3) + b"\x80", "ends inside a number"),
        (varint(1 << 3) + b"\x80" * 10, "more than ten bytes"),
        (b"\x00\x00", "without a number"),
        (varint(1 << 3 | 3), "of kind 3"),
        (varint(1 << 3 | 1) + b"1234567", "truncated"),
    ],
)
def test_what_is_wrong_is_named(message: bytes, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        list(protobuf.fields(memoryview(message)))


def test_a_value_of_the_other_kind_is_refused() -> None:
    for read in (lambda v: protobuf.text(v, 9), protobuf.inner):
        with pytest.raises(ModelFileError, match="a number stands"):
            read(3)
    with pytest.raises(ModelFileError, match="a text stands"):
        protobuf.number(memoryview(b"x"))
    with pytest.raises(ModelFileError, match="10 bytes stands where 9 can be"):
        protobuf.text(memoryview(b"0123456789"), 9)
    assert protobuf.text(memoryview("é".encode()), 9) == "é"


def test_int64_may_be_negative() -> None:
    ((_, value),) = protobuf.fields(memoryview(field(1, -5)))
    assert protobuf.number(value) == -5
