from __future__ import annotations

import pytest

from node.bench.prompts import QUESTIONS, long_prompt, question, words


def test_questions_never_repeat() -> None:
    assert len({question(number) for number in range(5 * len(QUESTIONS))}) == 5 * len(QUESTIONS)


def test_words_depend_on_the_seed_alone() -> None:
    assert words(50, 1) == words(50, 1)
    assert words(50, 1).split()[:4] != words(50, 2).split()[:4]
    assert len(words(50, 3).split()) == 50


@pytest.mark.parametrize("per_word", [0.5, 1.0, 1.3, 4.0])
@pytest.mark.parametrize("tokens", [1, 40, 3000])
async def test_a_long_prompt_is_as_long_as_was_asked(tokens: int, per_word: float) -> None:
    async def count(text: str) -> int:
        return round(len(text.split()) * per_word)

    text = await long_prompt(tokens, 1, count)
    found = await count(text)
    assert text
    assert found <= max(tokens, per_word)
    assert tokens == 1 or found >= min(
        tokens * 0.99 - per_word, tokens * per_word
    )  # never longer than one word a token


async def test_a_long_prompt_counts_in_few_steps() -> None:
    asked = []

    async def count(text: str) -> int:
        asked.append(text)
        return len(text)

    assert 2950 <= len(await long_prompt(3000, 1, count)) <= 3000
    assert len(asked) <= 8
