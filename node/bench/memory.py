"""How much memory a node really takes at its busiest, against what is computed from the model's header.

For each variant of the settings a node is started and made busy: all slots answer, embeddings and a structured answer
are asked for, and a long prompt arrives beside an answer. The kernel's high-water mark of the process (VmHWM) is what
it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from node.bench.process import NodeProcess
from node.bench.prompts import long_prompt, question
from node.bench.report import Figure
from node.bench.streams import count_tokens, first_token, together
from node.client import Client
from node.fleet.footprint import MIB, Footprint
from node.settings import Settings

MOST_OFF = 0.10
_BESIDE = 128  # tokens of the answer that streams while a long prompt is read
_BEGUN_S = 0.3
_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 20}}, "required": ["answer"]}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings that differ from the node's own. `warm_mib` is what may be kept of prompts outside the cache."""

    context: int
    kv_type: str = "f16"
    slots: int = 4
    threads: int = 0  # as many as the node would take
    warm_mib: int = 0

    @property
    def changed(self) -> dict[str, dict[str, Any]]:
        """Sections with their keys and values."""
        keys = {"context": self.context, "kv_tokens": self.context, "kv_type": self.kv_type, "slots": self.slots}
        threads = {"threads": self.threads} if self.threads else {}
        room = {"memory_bytes": self.warm_mib * MIB, "history_bytes": MIB, "disk_bytes": 0}
        return {"engine": keys | threads, "prewarm": {"enabled": self.warm_mib > 0, **room}}

    @property
    def changes(self) -> list[str]:
        """For a node's command line."""
        return [f"{name}.{key}={value}" for name, keys in self.changed.items() for key, value in keys.items()]

    def of(self, settings: Settings) -> Settings:
        """The settings with these changes."""
        sections = {
            name: msgspec.structs.replace(getattr(settings, name), **keys) for name, keys in self.changed.items()
        }
        return msgspec.structs.replace(settings, **sections)

    @property
    def name(self) -> str:
        """For the table."""
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        warm = f", {self.warm_mib} MiB of warm prefixes" if self.warm_mib else ""
        return f"context {self.context:,}, {self.kv_type}, {self.slots} slots{threads}{warm}"


FULL = (
    Variant(1024),
    Variant(4096),
    Variant(8192),
    Variant(2048, "q8_0"),
    Variant(2048, slots=16),
    Variant(2048, threads=1),
    Variant(2048, warm_mib=32),
)
QUICK = (Variant(1024), Variant(2048, "q8_0"))


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: bytes computed and bytes taken."""

    variant: Variant
    computed: Footprint
    taken: int

    @property
    def ratio(self) -> float:
        """Computed over taken."""
        return self.computed.total / self.taken


async def measure(variant: Variant, changes: Sequence[str], computed: Footprint, tell: Tell) -> Row:
    """Start a node, make it busy, read its high-water mark."""
    tell(variant.name)
    async with NodeProcess([*changes, *variant.changes]) as node, Client(node.url) as client:
        await _fill(client, node.url, variant)
        return Row(variant, computed, node.peak_rss())


async def _fill(client: Client, url: str, variant: Variant) -> None:
    """Everything that takes memory, one after the other."""
    await together(client, [question(number) for number in range(variant.slots)], 12)
    await _post(url, "/v1/embeddings", {"input": ["the harbour lies at the mouth of a slow river " * 20]})
    await _post(
        url,
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": question(0)}],
            "max_tokens": 24,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}},
        },
    )
    # As long as the cache has room for, beside an answer that runs when it comes.
    beside = asyncio.create_task(together(client, [question(1)], _BESIDE))
    await asyncio.sleep(_BEGUN_S)
    await first_token(client, await _prompt(url, variant.context - 2 * _BESIDE, 1), 1)
    await beside


async def _prompt(url: str, tokens: int, seed: int) -> str:
    return await long_prompt(tokens, seed, lambda text: count_tokens(url, text))


async def _post(url: str, path: str, body: dict[str, Any]) -> None:
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{url}{path}", json=body) as response,
    ):
        await response.read()


def figures(rows: Sequence[Row]) -> list[Figure]:
    """How far each is off, and what was computed."""
    return [
        Figure(
            row.variant.name,
            100 * abs(row.ratio - 1),
            "%",
            at_most=100 * MOST_OFF,
            detail=_detail(row),
        )
        for row in rows
    ]


def _detail(row: Row) -> str:
    parts = ", ".join(f"{part.name} {part.bytes / MIB:,.0f}" for part in row.computed.parts)
    return f"computed {row.computed.total / MIB:,.0f} ({parts}), took {row.taken / MIB:,.0f} MiB"
