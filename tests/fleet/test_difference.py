"""What a profile changes, and what that costs."""

from __future__ import annotations

from node.fleet.difference import Change, Cost, changes, cost
from node.fleet.directive import Chunk, ChunkIndex
from tests.support.fleets import profile


def index(*chunks: tuple[str, int, int]) -> ChunkIndex:
    made = tuple(Chunk(length=length, sha256=digit * 64, packed=packed) for digit, length, packed in chunks)
    return ChunkIndex(sha256="f" * 64, size=sum(chunk.length for chunk in made), chunks=made)


def test_nothing_changes() -> None:
    assert changes(profile(), profile()) == []


def test_settings_and_the_file() -> None:
    assert changes(profile(slots=3), profile(slots=5, model_sha256="ab" * 32)) == [
        Change("engine.slots", "3", "5"),
        Change("model_sha256", "none", "abababababababab"),
    ]


def test_a_default_that_is_named_is_no_change() -> None:
    named = profile(model="smollm2-135m-instruct")
    assert changes(profile(), named) == []


def test_what_must_come() -> None:
    old, new = index(("a", 10, 0), ("b", 20, 0)), index(("a", 10, 0), ("c", 30, 9), ("d", 5, 0), ("c", 30, 9))
    assert cost(old, new) == Cost(size=75, new=35, packed=14, chunks=2)
    assert cost(None, new).new == 45
    assert cost(new, new) == Cost(size=75, new=0, packed=0, chunks=0)
