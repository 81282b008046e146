"""What is signed is read strictly: nothing unknown, nothing out of bounds, and chunks that make up their file."""

import msgspec
import pytest

from node.fleet.directive import Chunk, ChunkIndex, Rollout, check

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "wrong",
    [{"revision": 0}, {"percent": 101}, {"profile": "../etc"}, {"profile_sha256": "x"}, {"colour": "green"}],
)
def test_a_rollout_says_what_is_understood_and_nothing_else(wrong: dict[str, object]) -> None:
    right = {"name": "r", "revision": 1, "profile": "kiosk-x86", "profile_sha256": DIGEST}
    assert msgspec.convert(right, Rollout).percent == 100
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**right, **wrong}, Rollout)


def test_chunks_make_up_their_file() -> None:
    chunks = (Chunk(length=3, sha256=DIGEST), Chunk(length=4, sha256=DIGEST))
    whole = ChunkIndex(sha256=DIGEST, size=7, chunks=chunks)
    assert check(whole) is whole
    with pytest.raises(ValueError, match="add up"):
        check(msgspec.structs.replace(whole, size=8))
