"""Past answers: who may be guessed for, what is found, what it costs, and that it can be forgotten."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.answers import END, LEAST, MOST, TAILS, WIDTH, Answers, beginning_key, place_key
from node.generation import Caller

PROMPT = list(range(1000, 1040))
ANSWER = [5, 6, 7, 8, 9, 10]


def caller(session: str = "s", tenant: str = "t") -> Caller:
    return Caller(tenant, "user", session)


def beginning(answers: Answers, who: Caller, prompt: Sequence[int] = PROMPT, tail: int = TAILS[0]) -> list[int]:
    return follow(answers, who, beginning_key(prompt[-tail:]))


def after(answers: Answers, who: Caller, *three: int) -> list[int]:
    return follow(answers, who, place_key(*three))


def follow(answers: Answers, who: Caller, key: int) -> list[int]:
    """What follows at the place, up to its end; nothing where there is none."""
    place = answers.find(who, key)
    if place is None:
        return []
    tokens, at = place
    rest = tokens[at:].tolist()
    return rest[: rest.index(END)]


def test_an_answer_is_found_by_its_prompts_end_and_by_three_of_its_own_tokens() -> None:
    answers = Answers(1 << 20)
    answers.add(caller(), PROMPT, ANSWER)
    for tail in TAILS:
        assert beginning(answers, caller(), tail=tail) == ANSWER
        assert beginning(answers, caller(), [1, 2, 3, *PROMPT[-tail:]], tail) == ANSWER, "nearly the same prompt"
    assert not beginning(answers, caller(), [*PROMPT, 1])
    assert after(answers, caller(), 6, 7, 8) == [9, 10]
    assert not after(answers, caller(), 8, 9, 10), "nothing follows the last token"
    assert not after(answers, caller(), 6, 7, 9)


def test_the_newest_counts() -> None:
    answers = Answers(1 << 20)
    answers.add(caller(), PROMPT, [1, 2, 3, 4, 5])
    answers.add(caller(), PROMPT, [1, 2, 3, 9, 9])
    assert beginning(answers, caller()) == [1, 2, 3, 9, 9]
    assert after(answers, caller(), 1, 2, 3) == [9, 9]


def test_others_see_an_answer_only_when_enough_sessions_were_given_it() -> None:
    answers = Answers(1 << 20, min_sessions=3)
    stranger = caller("stranger")
    for number in range(3):
        assert not beginning(answers, stranger)
        assert not after(answers, stranger, 5, 6, 7)
        for _ in range(3):  # the same session again does not count again
            answers.add(caller(f"s{number}"), PROMPT, ANSWER)
        assert beginning(answers, caller(f"s{number}")) == ANSWER
    assert beginning(answers, stranger) == ANSWER
    assert after(answers, stranger, 6, 7, 8) == [9, 10]


def test_an_answer_that_differs_in_one_token_is_another_one() -> None:
    answers = Answers(1 << 20, min_sessions=2)
    answers.add(caller("a"), PROMPT, ANSWER)
    answers.add(caller("b"), PROMPT, [*ANSWER[:-1], 99])
    assert not beginning(answers, caller("c"))


def test_tenants_share_nothing_unless_they_may() -> None:
    for shared in (False, True):
        answers = Answers(1 << 20, min_sessions=2, shared=shared)
        for session in "abc":
            answers.add(caller(session, "one"), PROMPT, ANSWER)
        assert bool(beginning(answers, caller("a", "two"))) is shared
        assert beginning(answers, caller("z", "one")) == ANSWER
        split = Answers(1 << 20, min_sessions=2, shared=shared)
        split.add(caller("a", "one"), PROMPT, ANSWER)
        split.add(caller("b", "two"), PROMPT, ANSWER)
        assert bool(beginning(split, caller("c", "one"))) is shared, "sessions of two tenants"


def test_without_a_session_nothing_is_kept_and_only_what_is_everybodys_is_seen() -> None:
    answers = Answers(1 << 20, min_sessions=2)
    for _ in range(5):
        answers.add(caller(""), PROMPT, ANSWER)
    assert answers.bytes == 0
    answers.add(caller("a"), PROMPT, ANSWER)
    assert not beginning(answers, caller(""))
    answers.add(caller("b"), PROMPT, ANSWER)
    assert beginning(answers, caller("")) == ANSWER


def test_too_short_is_not_kept_and_too_long_is_cut() -> None:
    answers = Answers(1 << 30)
    answers.add(caller(), PROMPT, ANSWER[: LEAST - 1])
    assert not beginning(answers, caller())
    answers.add(caller(), PROMPT, list(range(MOST + 500)))
    assert beginning(answers, caller()) == list(range(MOST))


def test_old_answers_go_when_the_budget_is_used_up_and_those_still_said_stay() -> None:
    answers = Answers(200_000, min_sessions=2)
    draw = random.Random(1)
    for session in "ab":
        answers.add(caller(session), PROMPT, ANSWER)
    for number in range(400):
        answers.add(caller("a"), [number], [draw.randrange(50_000) for _ in range(30)])
        answers.add(caller("a"), PROMPT, ANSWER)  # said again and again
        assert answers.bytes <= 200_000 + 8000
    assert not beginning(answers, caller("a"), [0], 1)
    assert beginning(answers, caller("other")) == ANSWER, "everybody's still, though only one says it now"


@pytest.mark.parametrize(("count", "length", "sessions"), [(300, 60, 1), (300, 60, 300), (3000, 4, 3), (5, 4000, 1)])
def test_it_takes_no_more_memory_than_it_says(count: int, length: int, sessions: int) -> None:
    draw = random.Random(2)
    texts = [[draw.randrange(50_000) for _ in range(length)] for _ in range(count)]
    names = [f"{draw.getrandbits(96):024x}" for _ in range(sessions)]
    tracemalloc.start()
    answers = Answers(1 << 30)
    for number, text in enumerate(texts):
        answers.add(Caller("tenant", "user", names[number % sessions]), text[:2], text)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= answers.bytes
    assert taken > answers.bytes / 4, "and not much less"


def test_forgetting_leaves_nothing_even_for_those_who_follow_one() -> None:
    answers = Answers(1 << 20, min_sessions=2)
    for session in "ab":
        answers.add(caller(session), PROMPT, ANSWER)
    place = answers.find(caller("a"), beginning_key(PROMPT[-TAILS[0] :]))
    assert place
    answers.forget()
    assert answers.bytes == 0
    assert len(place[0]) == 0
    assert not beginning(answers, caller("a"))
    answers.add(caller("c"), PROMPT, ANSWER)
    assert not beginning(answers, caller("a")), "sessions of before do not count"


TOKENS = st.lists(st.integers(0, 3), min_size=4, max_size=8)
WHO = st.builds(caller, st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["t", "u"]))


@given(said=st.lists(st.tuples(WHO, TOKENS, TOKENS), max_size=12), asks=WHO, three=st.tuples(*[st.integers(0, 3)] * 3))
def test_what_is_found_was_said_and_may_be_seen(
    said: list[tuple[Caller, list[int], list[int]]], asks: Caller, three: tuple[int, int, int]
) -> None:
    answers = Answers(1 << 20, min_sessions=2)
    for who, prompt, answer in said:
        answers.add(who, prompt, answer)
    tenant = [(who, answer) for who, _, answer in said if who.tenant == asks.tenant and who.session]

    def visible(answer: list[int]) -> bool:
        sessions = {who.session for who, other in tenant if other == answer}
        return len(sessions) >= 2 or (asks.session in sessions and bool(asks.session))

    possible = [
        answer[at:]
        for _, answer in tenant
        if visible(answer)
        for at in range(WIDTH, len(answer))
        if tuple(answer[at - 3 : at]) == three
    ]
    found = after(answers, asks, *three)
    assert found in possible if possible else not found
