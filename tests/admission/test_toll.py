"""Limits on a request's way: reserved, settled, cancelled, passed on."""

from __future__ import annotations

from typing import Any

import pytest

from node.admission.account import Rates
from node.admission.limits import Allowance
from node.admission.quota import Holder, Quotas
from node.admission.toll import Toll
from node.errors import Expired, Overloaded, RateLimited, TooLarge
from node.generation import Caller, Event, Failed, Finished, Request, Started, Token
from tests.support.sources import HandSource

CONTEXT = 1000


class Clock:
    now = 6000.0

    def __call__(self) -> float:
        return self.now


def made(rates: Rates | None, model: str = "m") -> tuple[Toll, HandSource, Clock]:
    source, clock = HandSource(), Clock()
    quotas = Quotas({"ann": Holder("acme", "ann", _any_model=Allowance(user=rates))})
    return Toll(source, quotas, model, clock, context=CONTEXT), source, clock


def request(id: str, prompt: int = 10, max_tokens: int = 40, user: str = "ann", **more: Any) -> Request:
    return Request(id, (1,) * prompt, max_tokens, caller=Caller("acme", user), **more)


def ignore(event: Event) -> None:
    pass


def tokens(source: HandSource, id: str, count: int) -> None:
    source.emit(id, Started())
    for _ in range(count):
        source.emit(id, Token(1, b"x"))
    source.emit(id, Finished("stop", 10, count))


def test_what_was_not_used_is_free_again() -> None:
    toll, source, _ = made(Rates(output=100, burst=1))
    toll.submit(request("a", max_tokens=60), ignore)
    with pytest.raises(RateLimited) as caught:
        toll.submit(request("b", max_tokens=60), ignore)
    assert caught.value.retry_after is not None
    assert caught.value.headers["x-ratelimit-remaining-tokens"] == "40"
    tokens(source, "a", 10)
    toll.submit(request("b", max_tokens=60), ignore)
    told = toll.headers("b")
    assert told()["x-ratelimit-remaining-tokens"] == "30"
    assert toll.headers("a")() == {}
    assert toll.status() == {"allowed": 2, "limited": 1, "too_large": 0, "under_way": 1, "accounts": 1}
    tokens(source, "b", 20)
    assert told()["x-ratelimit-remaining-tokens"] == "70", "who is told at the end is told what was really used"


@pytest.mark.parametrize("end", [Finished("cancelled", 10, 0), Failed(Expired("Too late."))])
def test_what_never_began_costs_nothing(end: Finished | Failed) -> None:
    toll, source, _ = made(Rates(requests=2, prompt=100, output=100, burst=1))
    for id in "abcdef":
        toll.submit(request(id), ignore)
        source.emit(id, end)
    assert toll.status()["allowed"] == 6


def test_what_began_and_was_stopped_is_counted_as_far_as_it_came() -> None:
    toll, source, _ = made(Rates(output=100, burst=1))
    toll.submit(request("a", max_tokens=90), ignore)
    source.emit("a", Started())
    for _ in range(70):
        source.emit("a", Token(1, b"x"))
    source.emit("a", Failed(Expired("It broke.")))
    with pytest.raises(RateLimited):
        toll.submit(request("b", max_tokens=40), ignore)
    toll.submit(request("c", max_tokens=30), ignore)


def test_an_answer_is_cut_to_a_burst_and_a_prompt_beyond_it_is_refused_for_good() -> None:
    toll, source, _ = made(Rates(prompt=100, output=100, burst=0.5))
    seen: list[Event] = []
    toll.submit(request("a", max_tokens=4000), seen.append)
    assert source.requests["a"].max_tokens == 50
    with pytest.raises(TooLarge):
        toll.submit(request("b", prompt=51), ignore)
    assert toll.status()["too_large"] == 1
    tokens(source, "a", 2)
    assert seen == [Started(), Token(1, b"x"), Token(1, b"x"), Finished("stop", 10, 2)]


def test_without_a_length_several_answers_run_and_grow() -> None:
    toll, source, _ = made(Rates(output=160, burst=0.5))  # a burst of 80, slices of 10
    seen: dict[str, list[Event]] = {name: [] for name in "abc"}
    for name in "ab":
        toll.submit(request(name, max_tokens=CONTEXT - 10), seen[name].append)
        assert source.requests[name].max_tokens == 80, "no answer is longer than a burst"
    assert toll.headers("a")()["x-ratelimit-remaining-tokens"] == "60"
    for _ in range(35):
        source.emit("a", Token(1, b"x"))
    assert toll.headers("a")()["x-ratelimit-remaining-tokens"] == "30"
    for _ in range(35):
        source.emit("a", Token(1, b"x"))
    assert source.cancelled == ["a"], "70 of the 80 are its own, 10 the other's"
    assert seen["a"][-1] == Finished("length", 10, 70)
    source.emit("a", Token(1, b"late"))
    source.emit("a", Finished("cancelled", 10, 71))
    assert len(seen["a"]) == 71
    with pytest.raises(RateLimited):
        toll.submit(request("c", max_tokens=CONTEXT - 10), ignore)
    tokens(source, "b", 10)
    assert toll.status()["under_way"] == 0


def test_a_length_that_was_asked_for_is_reserved_whole() -> None:
    toll, _, _ = made(Rates(output=160, burst=0.5))
    toll.submit(request("a", max_tokens=70), ignore)
    with pytest.raises(RateLimited):
        toll.submit(request("b", max_tokens=CONTEXT - 11), ignore)


def test_an_answer_that_grows_stops_at_a_burst() -> None:
    toll, source, _ = made(Rates(output=160, burst=0.5))
    toll.submit(request("a", max_tokens=CONTEXT - 10), ignore)
    tokens(source, "a", 80)
    assert source.cancelled == []
    assert toll.status()["under_way"] == 0


def test_a_refusal_behind_it_costs_nothing() -> None:
    toll, source, _ = made(Rates(requests=1, burst=1))
    source.refuse = Overloaded("Full.", retry_after=1)
    for _ in range(3):
        with pytest.raises(Overloaded, match="Full"):
            toll.submit(request("a"), ignore)
    source.refuse = None
    toll.submit(request("a"), ignore)
    assert toll.status()["under_way"] == 1


def test_what_goes_on_after_a_restart_was_counted_before() -> None:
    toll, source, _ = made(Rates(requests=1, burst=1))
    for id in "abc":
        toll.submit(request(id, continued=(1, 2)), ignore)
    assert list(source.sinks) == ["a", "b", "c"]
    assert toll.status()["allowed"] == 0


def test_and_is_cut_as_it_was_then() -> None:
    toll, source, _ = made(Rates(output=60, burst=0.5))
    toll.submit(request("a", max_tokens=4000, continued=(1, 2)), ignore)
    assert source.requests["a"].max_tokens == 30


def test_a_call_of_many_inputs_is_one_request_with_all_of_their_tokens() -> None:
    toll, source, _ = made(Rates(requests=4, prompt=100, burst=0.5))
    toll.submit(request("0", prompt=10, max_tokens=0, batch=40), ignore)
    for id in "123":
        toll.submit(request(id, prompt=10, max_tokens=0, batch=0), ignore)
    assert list(source.sinks) == ["0", "1", "2", "3"]
    told = toll.headers("0")()
    assert (told["x-ratelimit-remaining-requests"], told["x-ratelimit-remaining-tokens"]) == ("1", "10")
    with pytest.raises(TooLarge):
        toll.submit(request("4", prompt=10, batch=51), ignore)


def test_whoever_has_no_limits_is_only_counted() -> None:
    toll, source, _ = made(None)
    for number in range(50):
        toll.submit(request(str(number)), ignore)
        toll.submit(request(f"x{number}", user="stranger"), ignore)
    assert toll.headers("1")() == {}
    assert toll.status()["accounts"] == 0
    toll.hold("1", True)
    toll.cancel("1")
    assert (source.held, source.cancelled) == ([("1", True)], ["1"])


def test_the_minute_passes() -> None:
    toll, source, clock = made(Rates(requests=1, burst=1))
    toll.submit(request("a"), ignore)
    tokens(source, "a", 1)
    with pytest.raises(RateLimited) as caught:
        toll.submit(request("b"), ignore)
    clock.now += caught.value.retry_after or 0
    toll.submit(request("b"), ignore)
