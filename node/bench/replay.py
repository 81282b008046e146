"""Prompts of real people in the rhythm of a real service: a list of tools and a question each, as token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from node.bench.workload import Arrival
from node.engine.blocks import BLOCK
from node.engine.chat import ChatTemplate, no_template
from node.engine.context import Part
from node.engine.decoder import Decoder
from node.errors import OperatorError
from node.prewarm.demand import HalfLives
from node.prewarm.tree import PrefixTree, pack
from node.settings import Engine

MOST_FILE_BYTES = 64 << 20

Ids = tuple[int, ...]


class Asked(msgspec.Struct, frozen=True):
    """One line of prompts.jsonl: a conversation, and the key of its tools in toollists.json."""

    id: str
    tools: str
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Step:
    """A request of the replay: when, and which prompt."""

    at: float
    ids: Ids


def read(folder: Path) -> tuple[list[Asked], dict[str, list[dict[str, Any]]]]:
    """Conversations and tool lists of a data set in the form of `tests/data/bfcl_live`; raises OperatorError."""
    try:
        lines = _text(folder / "prompts.jsonl").splitlines()
        asked = [msgspec.json.decode(line, type=Asked) for line in lines if line]
        lists = msgspec.json.decode(_text(folder / "toollists.json"), type=dict[str, list[dict[str, Any]]])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OperatorError(
            f"{folder} does not hold prompts.jsonl and toollists.json as expected ({error})."
        ) from error
    if missing := [one.tools for one in asked if one.tools not in lists]:
        raise OperatorError(f"{folder}: toollists.json has no list {missing[0]}.")
    return asked, lists


class Tokenizer:
    """A model's chat template and vocabulary, and what a token's state takes; a context manager."""

    def __init__(self, settings: Engine, weights: Path) -> None:
        self._decoder = Decoder(msgspec.structs.replace(settings, slots=1, context=BLOCK * 4, kv_tokens=0), weights)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._decoder.close()

    def prompts(self, asked: Sequence[Asked], lists: dict[str, list[dict[str, Any]]]) -> list[Ids]:
        """Token ids of conversations with their tools, as the node would make them."""
        source = self._decoder.chat_template
        if source is None:
            raise no_template()
        template = ChatTemplate(source, self._decoder.vocabulary)
        tools = {key: [{"type": "function", "function": tool} for tool in tools] for key, tools in lists.items()}
        return [tuple(template.ids(one.messages, tools[one.tools])) for one in asked]

    def token_bytes(self) -> float:
        """Bytes of a token's state."""
        context = self._decoder.context
        context.decode([Part(0, 0, np.ones(BLOCK, np.int32), False)])
        return len(context.take(0, 0, BLOCK)) / BLOCK


def sequence(prompts: Sequence[Ids], rows: Sequence[Arrival], gap_s: float, shuffle: int | None = None) -> list[Step]:
    """The prompts in their order, or shuffled with a seed, in a trace's rhythm at one request in `gap_s` on average."""
    ordered = list(prompts)
    if shuffle is not None:
        random.Random(shuffle).shuffle(ordered)
    count = min(len(ordered), len(rows))
    stretch = gap_s * (count - 1) / (rows[count - 1].at - rows[0].at) if count > 1 else 1.0
    return [Step((row.at - rows[0].at) * stretch, ids) for ids, row in zip(ordered, rows, strict=False)]


def unlimited(steps: Sequence[Step]) -> list[int]:
    """For each prompt, how many of its tokens a cache without bounds has: the longest beginning of any before."""
    tree = PrefixTree(1, 1 << 62, HalfLives(), since=0.0)
    found = []
    for step in steps:
        found.append(min(tree.match("", pack(step.ids)).tokens, len(step.ids) - 1))
        tree.add("", pack(step.ids), None, step.at)
    return found


def typical(steps: Sequence[Step], before: int, size: int) -> int:
    """Where `size` requests begin, not before number `before`, that share as much with earlier ones as all after it do.

    A piece of a replay is otherwise as rich or as poor as its place happens to be.
    """
    most, tokens = unlimited(steps), [len(step.ids) for step in steps]
    whole = sum(most[before:]) / max(1, sum(tokens[before:]))

    def off(start: int) -> float:
        return abs(sum(most[start : start + size]) / sum(tokens[start : start + size]) - whole)

    return min(range(before, max(before + 1, len(steps) - size + 1)), key=off)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise OperatorError(f"{path} is larger than this benchmark reads ({MOST_FILE_BYTES >> 20} MiB).")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"Cannot read {path}: {error.strerror}.") from error
