"""What a profile changes on a node that has another one: settings, and the bytes that must come. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node.fleet.directive import ChunkIndex
from node.fleet.profile import Profile
from node.settings import SECTIONS


@dataclass(frozen=True, slots=True)
class Change:
    """A setting, before and after, as text."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of a model file: all, those that are not in the old file, and what these cost packed."""

    size: int
    new: int
    packed: int
    chunks: int


def changes(before: Profile, after: Profile) -> list[Change]:
    """Every setting that differs, whether a profile names it or leaves it to the default."""
    found = []
    for name, section in SECTIONS.items():
        old, new = getattr(before.settings, name), getattr(after.settings, name)
        for key in section.__struct_fields__:
            was, will = getattr(old, key), getattr(new, key)
            if was != will:
                found.append(Change(f"{name}.{key}", _shown(was), _shown(will)))
    if before.model_sha256 != after.model_sha256:
        found.append(Change("model_sha256", before.model_sha256[:16] or "none", after.model_sha256[:16] or "none"))
    return found


def cost(before: ChunkIndex | None, after: ChunkIndex) -> Cost:
    """What a node with the old file has to get; all of it where nobody knows the old one."""
    there = {chunk.sha256 for chunk in before.chunks} if before else set()
    new = {chunk.sha256: chunk for chunk in after.chunks if chunk.sha256 not in there}
    plain = sum(chunk.length for chunk in new.values())
    return Cost(after.size, plain, sum(chunk.packed or chunk.length for chunk in new.values()), len(new))


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
