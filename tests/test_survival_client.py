"""Answers that survive, as applications see them: many at once through `Client`, over bad cables, from a dying node.

Every answer is cut at one to five random numbers: a TCP reset, a connection that goes silent (half-open), or the node
killed outright; half of the answers go over server-sent events, half over a WebSocket, and some change in the middle.
SURVIVAL_COUNT=200 is the long run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node.client import Client, Done, Patience, TextDelta
from tests.support.cable import Cable, cable
from tests.support.cuts import Reader, plan
from tests.test_survival import Reviving, journal_text

COUNT = int(os.environ.get("SURVIVAL_COUNT", "10"))
PATIENCE = Patience(first_s=0.05, most_s=0.5, give_up_s=120.0, start_s=120.0, silence_s=2.0)


@dataclass
class Run:
    """One node, and what happens to its readers."""

    node: Reviving
    dice: random.Random
    cuts: Counter[str] = field(default_factory=Counter)
    crowd: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(16))  # else it is killed all the time

    async def hurt(self, wire: Cable, killing: bool) -> str:
        """Break something under a reader; returns what."""
        how = self.dice.choice(("reset", "half-open", "change", *(("kill", "kill") if killing else ())))
        self.cuts[how] += 1
        if how == "reset":
            wire.cut()
        elif how == "half-open":
            wire.freeze()
        elif how == "kill":
            await self.node.kill()
        return how

    async def read(self, reader: Reader, index: int) -> int:
        """One answer to its end; returns how many connections it took."""
        transports = ("sse", "ws") if index % 2 else ("ws", "sse")
        messages, tokens = reader.body["messages"], reader.body["max_tokens"]
        async with (
            self.crowd,
            cable(self.node.url, thin=True) as wire,
            Client(wire.url, patience=PATIENCE, rng=random.Random(index).random) as client,
        ):
            events = client.chat(messages, max_tokens=tokens, resumable=True, transport=transports[0])  # type: ignore[arg-type]
            turn = 0
            while not reader.finished:
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, Done):
                            reader.finished = True
                            break
                        assert isinstance(event, TextDelta), "only a power cut takes text back"
                        assert event.seq is not None
                        assert event.seq > reader.last, "a number came twice"
                        reader.last = event.seq
                        reader.pieces.append((event.seq, event.text))
                        if reader.cuts and reader.last >= reader.cuts[0]:
                            reader.cuts.pop(0)
                            if await self.hurt(wire, killing=index % 4 < 2) == "change":
                                turn += 1
                                break
                reader.id = client.history[-1].id
                events = client.stream(reader.id, reader.last + 1, transport=transports[turn % 2])  # type: ignore[arg-type]
            await events.aclose()
            return wire.connections


@pytest.mark.timeout(900)
async def test_every_answer_survives_through_the_client(tmp_path: Path) -> None:
    node = Reviving(
        *(tmp_path, "--engine", "echo", "--slots", "8", "--set", "queue.max_waiting=1000"),
        *("--set", "server.keepalive_s=0.5"),
    )
    await node.start()
    run = Run(node, random.Random(7))
    readers = plan(COUNT, 3000, seed=7)
    try:
        connections = await asyncio.gather(*(run.read(reader, index) for index, reader in enumerate(readers)))
        wrong = [reader for reader in readers if reader.text != await journal_text(node.url, reader.id)]
        for reader in readers:
            asked = reader.body["messages"][0]["content"]  # type: ignore[index]
            assert reader.text == asked[: len(reader.text)]
            assert len(reader.text.encode()) > 1000
        figures = f"{COUNT} answers, {sum(connections)} connections, {node.deaths} kills, cuts {dict(run.cuts)}"
        print(f"{figures}, {len(wrong)} wrong")  # noqa: T201
        assert not wrong
        assert node.deaths >= 1
    finally:
        node.stop()
