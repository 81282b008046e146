"""Idempotency keys: one generation for all attempts, bounded in number and age."""

import pytest

from node.errors import InvalidRequest
from node.generation import Request
from node.server.replays import Replays, key_of, key_of_body
from node.server.replies import TextReply
from node.server.work import Running, Work
from node.stream.session import Session
from tests.support.sources import HandSource


def running(id: str = "r") -> Running:
    request = Request(id, (1,), 1)
    return Running(Work(request, lambda cached: TextReply(id, 0, "m"), False), Session(request, HandSource()))


KEY = key_of("key", "Bearer a", "/v1/x", b"body")


def test_the_same_request_finds_the_same_generation() -> None:
    replays, first = Replays(), running()
    assert replays.find(KEY, 0.0) is None
    replays.keep(KEY, first, 0.0)
    assert replays.find(KEY, 1.0) is first


def test_another_request_under_the_same_key_is_refused() -> None:
    replays = Replays()
    replays.keep(KEY, running(), 0.0)
    with pytest.raises(InvalidRequest) as caught:
        replays.find(key_of("key", "Bearer a", "/v1/x", b"other"), 1.0)
    assert caught.value.param == "Idempotency-Key"


def test_a_key_belongs_to_its_sender() -> None:
    replays = Replays()
    replays.keep(KEY, running(), 0.0)
    assert replays.find(key_of("key", "Bearer b", "/v1/x", b"body"), 1.0) is None


def test_generations_are_forgotten_in_time_and_in_number() -> None:
    replays = Replays(limit=2, keep_s=10.0)
    keys = [key_of(str(number), "", "/", b"") for number in range(3)]
    for number, key in enumerate(keys):
        replays.keep(key, running(str(number)), float(number))
    assert replays.find(keys[0], 3.0) is None
    assert replays.find(keys[1], 3.0) is not None
    assert replays.find(keys[1], 11.0) is None
    assert replays.find(keys[2], 11.0) is not None


def test_what_broke_is_dropped() -> None:
    replays, broken = Replays(), running()
    replays.keep(KEY, broken, 0.0)
    replays.drop(broken)
    assert replays.find(KEY, 0.0) is None


def test_an_absurd_key_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        key_of("k" * 257, "", "/", b"")


def test_a_body_is_a_key_of_its_own() -> None:
    replays, first = Replays(), running()
    replays.keep(key_of_body("Bearer a", "/v1/x", b"body"), first, 0.0)
    assert replays.find(key_of_body("Bearer a", "/v1/x", b"body"), 1.0) is first
    for other in (("Bearer b", "/v1/x", b"body"), ("Bearer a", "/v1/y", b"body"), ("Bearer a", "/v1/x", b"bod")):
        assert replays.find(key_of_body(*other), 1.0) is None
