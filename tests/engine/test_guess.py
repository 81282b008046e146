"""A guess follows what was said before, and knows how far it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.answers import Answers
from node.engine.guess import Guess, Odds
from node.generation import Caller

ME = Caller("t", "u", "s")
EOS = 2
PROMPT = list(range(100, 140))


class Text:
    """Tokens that grow, and a guess about them."""

    def __init__(self, prompt: Sequence[int], answers: Answers | None = None, odds: Odds | None = None) -> None:
        self.ids = np.zeros(len(prompt) + 2000, np.int32)
        self.ids[: len(prompt)] = prompt
        self.length = len(prompt)
        self.guess = Guess(self.ids, answers, ME, odds or Odds(), {EOS})
        self.guess.begin(len(prompt), len(prompt))

    def say(self, *tokens: int) -> None:
        for token in tokens:
            self.ids[self.length] = token
            self.length += 1
            self.guess.saw(self.length)

    def next(self, most: int = 5) -> list[int]:
        return list(self.guess.next(most, self.length))


def known(*texts: Sequence[int], prompt: Sequence[int] = PROMPT) -> Answers:
    answers = Answers(1 << 20)
    for text in texts:
        answers.add(ME, prompt, text)
    return answers


def test_the_answer_to_the_same_prompt_is_guessed_from_its_first_token_on() -> None:
    text = Text(PROMPT, known([1, 3, 5, 7, 9, 11]))
    assert text.next() == [1, 3, 5, 7, 9]
    text.say(1, 3)
    assert text.next(9) == [5, 7, 9, 11]
    assert text.next(1) == [5]
    assert text.next(0) == []


def test_when_the_text_goes_another_way_a_new_place_is_looked_for() -> None:
    text = Text(PROMPT, known([1, 3, 5, 7, 9, 11], [21, 22, 23, 24, 25, 26]))
    assert text.next(2) == [21, 22], "the newest answer"
    text.say(1)
    assert text.next() == []
    assert text.guess.chance == 0
    text.say(3, 5)
    assert text.next() == [7, 9, 11], "three tokens are enough"


def test_own_text_is_looked_at_too_but_answers_come_first() -> None:
    text = Text([*PROMPT, 31, 32, 33, 34, 35])
    text.say(31, 32)
    assert text.next() == []
    text.say(33)
    assert text.next() == [34, 35, 31, 32, 33], "in its own prompt, and on into the answer"
    text.say(34, 35, 50, 33, 34, 35)
    assert text.next() == [50, 33, 34, 35], "the newest place, and never beyond the end"
    text = Text([*PROMPT, 31, 32, 33, 34, 35], known([31, 32, 33, 77, 78]))
    text.say(0, 31, 32, 33)
    assert text.next(2) == [77, 78]


def test_a_loop_is_found() -> None:
    text = Text(PROMPT)
    text.say(*[1, 3, 5, 7] * 3)
    assert text.next(4) == [1, 3, 5, 7]


def test_nothing_is_guessed_beyond_an_end() -> None:
    text = Text([*PROMPT, 31, 32, 33, EOS, 40, 41])
    text.say(31, 32)
    assert text.next() == []
    text.say(33)
    assert text.next() == []
    assert text.guess.chance == 0


def test_a_short_or_empty_beginning_is_no_problem() -> None:
    for length in range(4):
        text = Text(PROMPT[:length])
        text.say(5, 6, 7, 5, 6, 7, 5)
        assert text.next(2) == [6, 7]


def test_a_continued_answer_is_found_by_its_tokens() -> None:
    answers = known([1, 3, 5, 7, 9, 11])
    ids = np.array([*PROMPT, 1, 3, 5, 0, 0, 0], np.int32)
    guess = Guess(ids, answers, ME, Odds(), ())
    guess.begin(len(PROMPT), len(PROMPT) + 3)
    assert list(guess.next(3, len(PROMPT) + 3)) == [7, 9, 11]


def test_trust_grows_while_it_is_right_and_starts_anew_at_another_place() -> None:
    said = list(range(200, 230))
    text = Text(PROMPT, known(said))
    chances = [text.guess.chance]
    for token in said[:-1]:
        text.say(token)
        chances.append(text.guess.chance)
    assert chances == sorted(chances)
    assert chances[-1] > 0.99
    text.say(9)
    assert text.guess.chance == 0
    text.say(205, 206, 207)
    assert text.guess.chance == Odds().answer


@pytest.mark.parametrize(("kind", "said"), [("beginning", [7, 8, 9, 10]), ("own", [0, 31, 32, 33, 34])])
def test_odds_are_learned_from_first_guesses_only(kind: str, said: list[int]) -> None:
    odds, before = Odds(), getattr(Odds(), kind)
    for _ in range(60):
        text = Text([*PROMPT, 31, 32, 33, 34, 35], known([7, 8, 9, 10], prompt=[*PROMPT, 31, 32, 33, 34, 35]), odds)
        text.say(*said)
    assert getattr(odds, kind) > 0.9 > before
    for _ in range(60):
        text = Text([*PROMPT, 31, 32, 33, 34, 35], known([7, 8, 9, 10], prompt=[*PROMPT, 31, 32, 33, 34, 35]), odds)
        text.say(*said[:-1], 99) if kind == "own" else text.say(99)
    assert getattr(odds, kind) < 0.2
    assert odds.answer == Odds().answer


def test_what_is_forgotten_is_guessed_no_more() -> None:
    answers = known([1, 3, 5, 7, 9, 11])
    text = Text(PROMPT, answers)
    text.say(1)
    answers.forget()
    assert text.next() == []
    text.say(3)
    assert text.guess.chance == 0


@settings(max_examples=60)
@given(
    prompt=st.lists(st.integers(0, 4), max_size=30),
    past=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=20), max_size=3),
    said=st.lists(st.integers(0, 4), min_size=1, max_size=60),
)
def test_every_guess_was_said_before_after_what_was_said_last(
    prompt: list[int], past: list[list[int]], said: list[int]
) -> None:
    text = Text(prompt, known(*past, prompt=prompt))
    for number, token in enumerate(said):
        guessed = text.next(4)
        assert len(guessed) <= 4
        assert EOS not in guessed
        assert bool(guessed) == (text.guess.chance > 0)
        written = text.ids[: text.length].tolist()
        if guessed and number >= 3:
            needle = [*written[-1:], *guessed]
            texts = [written, *past]
            found = any(needle == one[i : i + len(needle)] for one in texts for i in range(len(one)))
            assert found, "what follows the last token, wherever it stood"
        text.say(token)
