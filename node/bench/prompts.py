"""What the benchmarks ask: everyday questions, and long prompts of real words that no cache has seen."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

QUESTIONS = (
    "How do I keep bread fresh for longer?",
    "Why is the sky blue during the day and red in the evening?",
    "Write a short note that invites a neighbour for coffee.",
    "What should I check before a long drive in winter?",
    "Explain in two sentences how a heat pump works.",
    "Name three plants that grow well in the shade.",
    "How do I remove a coffee stain from a cotton shirt?",
    "What is the difference between weather and climate?",
    "Suggest a name for a small bakery by the harbour.",
    "How much water should an adult drink in a day?",
    "Tell me how to tie a knot that does not slip.",
    "What do the coloured lights of a ship mean at night?",
    "Give me a simple recipe for lentil soup.",
    "Why do bicycle tyres lose air over the months?",
    "How do I explain fractions to a child of eight?",
    "What is a good way to learn ten new words a day?",
)

_TEXT = """
the harbour lies at the mouth of a slow river and most of the houses along its northern shore were built of brick when
ships still carried grain salt and timber every spring the water rises over the meadows and leaves a layer of fine mud
in which reeds and willows grow a narrow road follows the bank passes an old mill whose wheel has not turned for forty
years and ends at a wooden bridge that only walkers may use in summer children swim below it while their parents sit in
the shade and talk about work prices and the weather the station master keeps a record of every train that arrives with
its number the minutes of delay and the reason which is usually snow a signal or a cow on the line visitors who ask for
the museum are sent to a white building behind the church where tools letters photographs and a model of the first
lighthouse are shown on two floors the engineer who designed it measured the height of the tide each morning for eleven
months and wrote the results into a small green book
"""
WORDS = tuple(_TEXT.split())

Count = Callable[[str], Awaitable[int]]


def question(number: int) -> str:
    """The question with that number; beyond the list they come again, with a number that makes them distinct."""
    turn, index = divmod(number, len(QUESTIONS))
    return QUESTIONS[index] if turn == 0 else f"({turn}) {QUESTIONS[index]}"


def words(count: int, seed: int) -> str:
    """`count` real words in an order that only this seed has."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


async def long_prompt(tokens: int, seed: int, count: Count) -> str:
    """Words that `count` says are about `tokens` tokens, never more; different from the first word for every seed."""
    number, whole = tokens, words(tokens, seed)
    for _ in range(8):
        text = " ".join(whole.split()[:number])
        found = await count(text)
        if tokens * 0.995 <= found <= tokens or number <= 1:
            break
        number = max(1, min(len(whole.split()), int(number * tokens / found)))
        if found > tokens and number * found > len(text.split()) * tokens:
            number -= 1
    return text
