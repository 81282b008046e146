"""Golden prompts and speed, against a model that echoes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from node.errors import EngineFailed, Unfit
from node.fleet import examine as module
from node.fleet.examine import Figures, examine, speed
from node.fleet.golden import Floor, Golden
from node.generation import Failed, Request, Sink, Token
from tests.support.fleet_node import EchoModel, EchoSource
from tests.support.service import INFO, ByteModel


def ticking(step: float = 0.1) -> Callable[[], float]:
    """A clock that goes on by a step at each look."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += step
        return now

    return look


async def test_what_is_promised_and_comes_is_accepted_with_figures() -> None:
    golden = [Golden(prompt="ping", matches="i.g"), Golden(prompt="abcdefgh", matches="^user: abc")]
    figures = await examine(EchoModel(), EchoSource(), golden, ticking())
    assert figures.ttft_s == pytest.approx(0.1)
    assert figures.tokens_s == pytest.approx(10)


async def test_another_answer_is_unfit_with_evidence() -> None:
    golden = [Golden(prompt="a", matches="a"), Golden(prompt="two and two", text="four", max_tokens=200)]
    with pytest.raises(Unfit, match="Golden prompt 2 of 2") as unfit:
        await examine(EchoModel(), EchoSource(), golden, ticking())
    assert unfit.value.evidence == {"golden": "2", "answer": "user: two and two\n", "expected": "four"}


async def test_a_model_without_a_template_is_asked_plainly() -> None:
    class Plain(ByteModel):
        def __init__(self) -> None:
            super().__init__(replace(INFO, can_chat=False))

        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return list(text.encode())

    await examine(Plain(), EchoSource(), [Golden(prompt="ping", text="ping")], ticking())


async def test_an_engine_that_fails_is_heard() -> None:
    class Broken(EchoSource):
        def submit(self, request: Request, sink: Sink) -> None:
            asyncio.get_running_loop().call_soon(sink, Failed(EngineFailed("no")))

    with pytest.raises(EngineFailed):
        await speed(EchoModel(), Broken(), ticking())


async def test_an_answer_that_never_ends_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    cancelled: list[str] = []

    class Silent(EchoSource):
        def submit(self, request: Request, sink: Sink) -> None:
            asyncio.get_running_loop().call_soon(sink, Token(1, b"x"))

        def cancel(self, request_id: str) -> None:
            cancelled.append(request_id)

    with pytest.raises(Unfit, match="not finished"):
        await speed(EchoModel(), Silent(), ticking())
    assert cancelled


@pytest.mark.parametrize(
    ("figures", "floor", "word"),
    [
        (Figures(0.5, 10), Floor(), ""),
        (Figures(), Floor(), ""),
        (Figures(0.5, 10), Floor(ttft_s=0.5, tokens_s=10), ""),
        (Figures(0.6, 10), Floor(ttft_s=0.5), "first token took 0.6 s"),
        (Figures(0.5, 9), Floor(tokens_s=10), "9 tokens/s"),
        (Figures(0.5), Floor(tokens_s=10), "no time"),
    ],
)
def test_floors(figures: Figures, floor: Floor, word: str) -> None:
    assert (word in figures.below(floor)) if word else figures.below(floor) == ""


def test_the_best_of_all_looks_counts() -> None:
    best = Figures(0.5, 8).best(Figures(0.7, 9)).best(Figures())
    assert best == Figures(0.5, 9)
    assert best.evidence == {"ttft_s": "0.500", "tokens_s": "9.000"}
