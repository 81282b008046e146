"""The signed list of whom a fleet denies."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from node.errors import EnrolmentError
from node.mesh.denial import MAX_BYTES, Denied, read, write

KEY = ec.generate_private_key(ec.SECP256R1())
FABRIC = "0123456789abcdef"
LIST = Denied(fabric=FABRIC, number=3, ids=("00000000000000aa", "00000000000000bb"))


def test_what_is_written_is_read() -> None:
    assert read(write(LIST, KEY), KEY.public_key(), FABRIC) == LIST


def test_the_longest_list_fits() -> None:
    longest = Denied(fabric=FABRIC, number=1, ids=tuple(f"{number:016x}" for number in range(2048)))
    text = write(longest, KEY)
    assert len(text) <= MAX_BYTES
    assert read(text, KEY.public_key(), FABRIC) == longest


@pytest.mark.parametrize("place", [0, 20, 60, -5])
def test_a_changed_byte_is_refused(place: int) -> None:
    text = bytearray(write(LIST, KEY))
    text[place] ^= 1
    with pytest.raises(EnrolmentError):
        read(bytes(text), KEY.public_key(), FABRIC)


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"{}", b"{}\nAAAA", b"{}\n!!", write(LIST, ec.generate_private_key(ec.SECP256R1())), b"x" * (1 << 20)],
)
def test_what_the_authority_did_not_sign_is_refused(text: bytes) -> None:
    with pytest.raises(EnrolmentError):
        read(text, KEY.public_key(), FABRIC)


def test_another_fleets_list_is_refused_although_the_key_is_right() -> None:
    with pytest.raises(EnrolmentError, match="another fleet"):
        read(write(LIST, KEY), KEY.public_key(), "f" * 16)


def test_a_signed_list_out_of_bounds_is_refused() -> None:
    wrong = Denied(fabric=FABRIC, number=1, ids=("not an id",))
    with pytest.raises(EnrolmentError, match="malformed"):
        read(write(wrong, KEY), KEY.public_key(), FABRIC)
