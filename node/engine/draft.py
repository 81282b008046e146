"""Drafts: guessed tokens that a step checks together with the one it has to decode anyway.

All of them give logits; tokens are drawn one after the other as ever, and the first that is not the one guessed ends
it. So what is drawn is what would have been drawn without drafts: from the same logits, with the same seed for the same
number, the same penalties, the same grammar. What was guessed wrong is cut from the cache again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from node.engine.answers import Answers
from node.engine.batch import Chunk, Plan
from node.engine.guess import Guess, Odds
from node.engine.running import Running
from node.engine.wager import MOST_TOKENS, StepLine, how_many


class Drafts:
    """Guesses of all sequences, and whether they pay. `ends` are tokens that end an answer."""

    def __init__(self, answers: Answers | None, ends: Collection[int], *, enabled: bool) -> None:
        self._answers, self._ends, self._enabled = answers, ends, enabled
        self._odds = Odds()
        self._line = StepLine()
        self.proposed = self.accepted = 0  # tokens, ever

    def add(self, plan: Plan, sequences: Mapping[int, Running], room: int, step_s: float = math.inf) -> Plan:
        """The plan with drafts, where all of it streams and they pay, for `room` tokens; `sequences` are by slot.

        `step_s` is how long a step may take, about.
        """
        chunks = plan.chunks
        streams = [sequences[chunk.slot] for chunk in chunks]
        if not self._enabled or not streams or any(sequence.pending > 1 for sequence in streams):
            return plan
        chances = [sequence.guess.chance if sequence.guess else 0.0 for sequence in streams]
        counts = how_many(chances, self._line, min(MOST_TOKENS - len(chunks), room), step_s)
        drafted = [
            Chunk(chunk.slot, 1 + drafts, True, drafts)
            for chunk, sequence, count in zip(chunks, streams, counts, strict=True)
            for drafts in (_write(sequence, count),)
        ]
        return Plan(tuple(drafted), plan.preempted)

    def saw(self, sequence: Running) -> None:
        """A token was drawn for a sequence."""
        if not (self._enabled and sequence.request.drafts):
            return
        if sequence.guess is None:
            request = sequence.request
            sequence.guess = Guess(sequence.tokens, self._answers, request.caller, self._odds, self._ends)
            sequence.guess.begin(len(request.prompt), sequence.length - 1)
        sequence.guess.saw(sequence.length)

    def checked(self, proposed: int, accepted: int) -> None:
        """So many drafts of a sequence were in a step, and so many of them were right."""
        self.proposed += proposed
        self.accepted += accepted

    def observe(self, tokens: int, seconds: float) -> None:
        """A step that only streams took so long with so many tokens."""
        self._line.observe(tokens, seconds)

    def ended(self, sequence: Running) -> None:
        """An answer is complete, or as complete as anybody wanted it."""
        request = sequence.request
        if self._enabled and self._answers is not None and request.kind == "generate":
            answer = sequence.tokens[len(request.prompt) : sequence.length].tolist()
            self._answers.add(request.caller, request.prompt, answer)


def without(plan: Plan) -> Plan:
    """The plan without its drafts."""
    return Plan(tuple(Chunk(chunk.slot, chunk.tokens - chunk.drafts, chunk.last) for chunk in plan.chunks))


def _write(sequence: Running, count: int) -> int:
    """Put at most `count` guesses behind a sequence's tokens; gives how many. The last token needs no check."""
    left = sequence.request.max_tokens - sequence.generated - 1
    if sequence.guess is None or (most := min(count, left)) < 1:
        return 0
    guessed: Sequence[int] = sequence.guess.next(most, sequence.length)
    sequence.tokens[sequence.length : sequence.length + len(guessed)] = guessed
    return len(guessed)
