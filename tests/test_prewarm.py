"""Warm prefixes in a whole node with the real model: isolation, restarts, crashes, damage.

ISOLATION_COUNT=20 takes as many turns as the node promises to survive; the suite takes fewer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node.errors import Unavailable
from node.generation import Finished, Request, Sampling
from node.prewarm import warmer
from node.runtime import Node
from node.stream.session import Session
from tests.engine.conftest import THREADS

pytestmark = pytest.mark.model
COUNT = int(os.environ.get("ISOLATION_COUNT", "2"))
Start = Callable[..., Awaitable[Node]]
SHOWN = ("ships", "whales", "coins", "maps")
PREAMBLE = " ".join(
    f"Rule {number}: hall {number} shows {SHOWN[number % 4]} and opens at {8 + number % 3}." for number in range(8)
)
MARKERS = {"a": "MAGENTA", "b": "OTTER"}


def question(owner: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": PREAMBLE},
        {"role": "user", "content": f"The password is {MARKERS[owner]}. Repeat the password: {MARKERS[owner]}"},
    ]


class Asker:
    """Asks a node greedily, behind its gate."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._number = 0

    async def ask(self, owner: str, tokens: int = 10) -> Session:
        self._number += 1
        prompt = tuple(self.node.model.chat(question(owner)))
        request = Request(str(self._number), prompt, tokens, sampling=Sampling(temperature=0), ignore_eos=True)
        session = Session(request, self.node.source)
        self.node.source.submit(request, session.feed)
        assert isinstance(await session.finished(), Finished)
        return session

    async def pair(self) -> list[str]:
        return [session.text for session in await asyncio.gather(self.ask("a"), self.ask("b"))]


@pytest.fixture
def start(start_node: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start nodes that are each other's next life. One step reads a whole prompt, so that batches have equal shapes."""
    monkeypatch.setattr(warmer, "PLAN_EVERY_S", 0.1)  # no test waits for the next plan

    async def start(**settings: object) -> Node:
        places = {"prewarm_folder": tmp_path / "states", "streams_database": tmp_path / "node.db"}
        engine = {"engine_slots": 2, "engine_context": 1024, "engine_threads": THREADS}
        return await start_node(
            **{"engine_prefill_step_ms": 60_000, "prewarm_min_sessions": 1, **places, **engine, **settings}
        )

    return start


async def test_alternating_and_concurrent_askers_get_what_they_get_alone(start: Start) -> None:
    """Each one's cold baseline is a node that warms nothing; the preamble is shared to the middle of a block."""
    cold = Asker(await start(prewarm_enabled=False))
    alone = {owner: (await cold.ask(owner)).text for owner in MARKERS}
    together = await cold.pair()
    await cold.node.stop()
    for owner, text in alone.items():
        assert MARKERS[owner] in text
    warm = Asker(await start())
    for turn in range(COUNT):
        for owner, other in (("a", "b"), ("b", "a")):
            session = await warm.ask(owner)
            assert session.text == alone[owner]
            assert MARKERS[other] not in session.text
            assert (session.cached_tokens > 110) == (turn > 0 or owner == "b")
    for _ in range(COUNT):
        assert await warm.pair() == together


async def stored(node: Node, files: int = 1) -> None:
    while node.warmth().saves < files:  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(0.02)


async def test_the_next_life_begins_with_what_this_one_read(start: Start) -> None:
    first = Asker(await start())
    cold = await first.ask("a")
    await stored(first.node)
    await first.node.stop()
    again = Asker(await start())
    warm = await again.ask("a")
    assert warm.cached_tokens == len(warm.request.prompt) - 1
    assert warm.text == cold.text
    assert again.node.warmth().loads >= 1


async def test_a_configured_system_prompt_is_warm_before_anybody_asked(start: Start) -> None:
    asker = Asker(await start(prewarm_templates=PREAMBLE, prewarm_min_sessions=3))
    await stored(asker.node)
    assert (await asker.ask("a")).cached_tokens > 110


async def test_a_resumed_answer_finds_its_own_state(start: Start) -> None:
    """Nobody else asked it, so no plan stores it; the graceful stop does."""
    first = Asker(await start(prewarm_min_sessions=3))
    prompt = tuple(first.node.model.chat(question("a")))
    request = Request("r", prompt, 400, sampling=Sampling(temperature=0), ignore_eos=True)
    session = Session(request, first.node.source)
    first.node.source.submit(request, session.feed)
    while session.count < 5:
        await session.changed(session.count)
    session.suspend(Unavailable("restarting"))
    said = tuple(token.id for token in session.tokens)
    await first.node._serving.keeper.stop([Request("r", prompt, 400, continued=said)])
    await first.node.stop(grace_s=0)
    again = await start(prewarm_min_sessions=3)
    went_on = Session(Request("r", prompt, len(said) + 3, continued=said, ignore_eos=True), again.source)
    again.source.submit(went_on.request, went_on.feed)
    await went_on.finished()
    assert went_on.cached_tokens == len(prompt)


@pytest.mark.parametrize("harm", ["a flipped bit", "another context size", "a half-written file"])
async def test_a_state_in_doubt_is_a_plain_prompt_and_one_line(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    first = Asker(await start())
    cold = await first.ask("a")
    await stored(first.node)
    await first.node.stop()
    (file,) = (tmp_path / "states").glob("*.state")
    content = bytearray(file.read_bytes())
    if harm == "a flipped bit":
        content[len(content) // 2] ^= 8
        file.write_bytes(content)
    elif harm == "a half-written file":
        file.with_suffix(".part").write_bytes(content[:1000])
        file.unlink()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = Asker(await start(**({"engine_context": 512} if harm == "another context size" else {})))
        warm = await again.ask("a")
    assert warm.text == cold.text
    assert again.node.warmth().loads == 0, "what is warm by now was read anew, in an idle moment"
    lines = [record for record in caplog.records if record.name.startswith("node.prewarm")]
    assert len(lines) == (0 if harm == "a half-written file" else 1)
    assert MARKERS["a"] not in caplog.text
