"""Does a loaded model do what its profile promises: the golden answers, and how fast.

Correctness is asked before anybody else can ask it, so that nothing disturbs it. Speed is asked then and again during
probation, and the best of all figures counts: other requests can only make it slower, never faster than it is.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.errors import NodeError, Unfit
from node.fleet.golden import Floor, Golden
from node.generation import Event, Failed, Finished, Model, Request, Sampling, Sink, Token, TokenSource
from node.stream.session import Session

_SPEED_TOKENS = 24
_LEAST_TOKENS = 4  # what is shorter says nothing about speed
_PATIENCE_S = 120.0
_SHOWN = 200

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Figures:
    """The best that was seen: seconds to a first token, tokens a second after it; None where nothing was."""

    ttft_s: float | None = None
    tokens_s: float | None = None

    def best(self, other: Figures) -> Figures:
        """The better of each."""
        firsts = [figure for figure in (self.ttft_s, other.ttft_s) if figure is not None]
        rates = [figure for figure in (self.tokens_s, other.tokens_s) if figure is not None]
        return Figures(min(firsts, default=None), max(rates, default=None))

    def below(self, floor: Floor) -> str:
        """What is worse than the profile promises; "" where nothing is."""
        if floor.ttft_s and (self.ttft_s is None or self.ttft_s > floor.ttft_s):
            return f"the first token took {_shown(self.ttft_s, 's')}, the profile promises {floor.ttft_s:g} s"
        if floor.tokens_s and (self.tokens_s is None or self.tokens_s < floor.tokens_s):
            return f"it makes {_shown(self.tokens_s, 'tokens/s')}, the profile promises {floor.tokens_s:g}"
        return ""

    @property
    def evidence(self) -> dict[str, str]:
        """For a report."""
        told = {"ttft_s": self.ttft_s, "tokens_s": self.tokens_s}
        return {key: f"{figure:.3f}" for key, figure in told.items() if figure is not None}


async def examine(model: Model, source: TokenSource, golden: Sequence[Golden], clock: Clock) -> Figures:
    """Ask all golden prompts, one after the other; raises Unfit with what came instead, or what the source raises."""
    figures = Figures()
    for index, one in enumerate(golden, 1):
        prompt = tuple(_prompt(model, one.prompt))
        text, seen = await _ask(source, prompt, one.max_tokens, clock)
        figures = figures.best(seen)
        if not one.accepts(text):
            told = {"golden": str(index), "answer": text[:_SHOWN], "expected": (one.text or one.matches)[:_SHOWN]}
            raise Unfit(f"Golden prompt {index} of {len(golden)} was not answered as the profile promises.", told)
    return figures.best(await speed(model, source, clock))


async def speed(model: Model, source: TokenSource, clock: Clock) -> Figures:
    """How fast it is just now; raises what the source raises."""
    _, seen = await _ask(source, tuple(_prompt(model, "Hello")), _SPEED_TOKENS, clock, ignore_eos=True)
    return seen


async def _ask(
    source: TokenSource, prompt: tuple[int, ...], tokens: int, clock: Clock, *, ignore_eos: bool = False
) -> tuple[str, Figures]:
    sampling = Sampling(temperature=0)
    # Guesses would come in bursts, and what is measured is how fast the model is.
    id = f"examine-{uuid.uuid4().hex}"
    request = Request(id, prompt, tokens, sampling=sampling, ignore_eos=ignore_eos, level="background", drafts=False)
    session, times = Session(request, source), [clock()]
    source.submit(request, _timing(session.feed, times, clock))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            end = await session.finished()
    except TimeoutError:
        raise Unfit(f"A short answer was not finished within {_PATIENCE_S:.0f} s.") from None
    finally:
        session.cancel()
    if not isinstance(end, Finished):
        raise end.error if isinstance(end, Failed) else NodeError("The model gave no text.")
    return session.text, _figures(times)


def _timing(sink: Sink, times: list[float], clock: Clock) -> Sink:
    def timed(event: Event) -> None:
        if isinstance(event, Token):
            times.append(clock())
        sink(event)

    return timed


def _figures(times: Sequence[float]) -> Figures:
    """`times` are of the question and of each token."""
    if len(times) < 2:
        return Figures()
    began, first, last, count = times[0], times[1], times[-1], len(times) - 1
    rate = (count - 1) / (last - first) if count >= _LEAST_TOKENS and last > first else None
    return Figures(first - began, rate)


def _prompt(model: Model, text: str) -> list[int]:
    return model.chat([{"role": "user", "content": text}]) if model.info.can_chat else model.encode(text)


def _shown(figure: float | None, unit: str) -> str:
    return "no time that could be measured" if figure is None else f"{figure:.3g} {unit}"
