from __future__ import annotations

import pytest

from node.bench.figures import Arrivals
from node.bench.process import NodeProcess
from node.bench.streams import count_tokens, first_token, listen, together
from node.client import Client
from node.errors import EngineFailed, InvalidRequest
from tests.test_client import END, FIRST, LAST, USAGE, script, serving, text


async def test_every_stream_is_as_long_as_asked(echo_process: NodeProcess) -> None:
    async with Client(echo_process.url) as client:
        streams = await together(client, ["one", "two", "three"], 20)
    assert [stream.tokens for stream in streams] == [20, 20, 20]
    for stream in streams:
        assert 1 <= len(stream.times) <= 20
        assert stream.times == sorted(stream.times)


async def test_pieces_are_noted_as_they_come() -> None:
    async with serving(script(FIRST, text("a"), 0.05, text("b"), LAST, USAGE, END)) as url, Client(url) as client:
        arrivals = Arrivals()
        done = await listen(client, "Hi", arrivals, 2)
    assert done.finish_reason == "stop"
    assert len(arrivals.times) == 2
    assert arrivals.tokens == 2
    assert arrivals.times[1] > arrivals.times[0]


async def test_a_stream_that_is_too_short_is_no_measurement() -> None:
    async with serving(script(FIRST, text("a"), LAST, USAGE, END)) as url, Client(url) as client:
        with pytest.raises(EngineFailed, match="of 30 tokens ended after 2"):
            await together(client, ["Hi"], 30)


async def test_one_refusal_ends_all(echo_process: NodeProcess) -> None:
    async with Client(echo_process.url) as client:
        with pytest.raises(InvalidRequest):
            await together(client, ["one", "two"], 300_000)


async def test_the_first_token_takes_time(echo_process: NodeProcess) -> None:
    async with Client(echo_process.url) as client:
        assert 0 < await first_token(client, "word " * 100) < 60


async def test_an_answer_without_text_has_no_first_token() -> None:
    async with serving(script(FIRST, LAST, USAGE, END)) as url, Client(url) as client:
        with pytest.raises(EngineFailed, match="without any text"):
            await first_token(client, "Hi")


async def test_the_node_counts_tokens(echo_process: NodeProcess) -> None:
    assert await count_tokens(echo_process.url, "twelve bytes") == 12
