from __future__ import annotations

import pytest

from node.bench.process import NodeProcess
from node.bench.soak import Plan, Soak, Tally, figures, what_is_wrong
from node.client import Done, Usage

MIB = 1 << 20


def done(reason: str, tokens: int | None) -> Done:
    usage = None if tokens is None else Usage(10, tokens)
    return Done(reason, usage, ttft_s=0.1, total_s=1.0, tokens_per_second=None, model="m", id="i")


@pytest.mark.parametrize(
    ("reply", "pieces", "problem"),
    [
        (done("length", 16), 16, None),
        (done("length", 16), 15, None),  # a character in two tokens
        (done("stop", 3), 3, None),
        (done("stop", 0), 0, None),
        (done("length", 15), 15, "15 tokens where 16 were asked for, ended by length"),
        (done("stop", 17), 17, "17 tokens where 16 were asked for, ended by stop"),
        (done("stop", 3), 4, "4 pieces of text for 3 tokens"),
        (done("stop", 3), 0, "0 pieces of text for 3 tokens"),
        (done("stop", None), 3, "no usage"),
        (done("content_filter", 3), 3, "finish_reason content_filter"),
    ],
)
def test_whole_replies(reply: Done, pieces: int, problem: str | None) -> None:
    assert what_is_wrong(reply, pieces, 16) == problem


def tally(**changes: object) -> Tally:
    flat = [(float(at), 200 * MIB) for at in range(60)]
    seen = Tally(replies=10, tokens=300, pieces=299, ttft=[0.5], rss=flat, live=[0.002] * 100, took_s=10)
    for name, value in changes.items():
        setattr(seen, name, value)
    return seen


def test_a_node_that_holds() -> None:
    replies, memory, live = figures(tally(), Plan(seconds=60))
    assert (replies.met, memory.met, live.met) == (True, True, True)
    assert replies.detail == "10 replies, 300 tokens in 299 pieces, 30.0 tokens/s, median TTFT 0.5 s"


def test_one_problem_is_too_many() -> None:
    replies, *_ = figures(tally(problems=["EngineFailed: no"] * 3 + ["no usage"]), Plan(seconds=60))
    assert (replies.met, replies.value) == (False, 4)
    assert replies.detail == "EngineFailed: no; no usage"


def test_memory_may_grow_while_it_warms_up() -> None:
    rss = [(float(at), (100 if at < 30 else 200) * MIB) for at in range(150)]
    assert figures(tally(rss=rss), Plan(seconds=150))[1].value == 0


def test_memory_that_creeps_is_seen() -> None:
    rss = [(float(at), (200 + at) * MIB) for at in range(150)]
    memory = figures(tally(rss=rss), Plan(seconds=150))[1]
    assert (memory.value, memory.met) == (59.5, False)
    assert memory.detail == "from 230.0 to 349.0 MiB; first 230.0, last 349.0"


def test_health_must_answer_in_time() -> None:
    assert figures(tally(live=[0.002] * 97 + [0.2] * 3), Plan(seconds=60))[2].met is False


@pytest.mark.parametrize(("seconds", "warm_up"), [(180, 30), (20, 5)])
def test_the_warm_up_is_a_part_of_short_runs(seconds: float, warm_up: float) -> None:
    assert Plan(seconds=seconds).warm_up_s == warm_up


async def test_a_short_soak(echo_process: NodeProcess) -> None:
    said: list[float] = []
    soak = Soak(echo_process, Plan(clients=20, seconds=1.5), lambda elapsed, _: said.append(elapsed))
    await soak.run()
    assert soak.tally.problems == []
    assert soak.tally.replies >= 20
    assert soak.tally.tokens >= 20 * 16
    assert len(soak.tally.rss) >= 1
    assert len(soak.tally.live) >= 2
    assert said == sorted(said)


async def test_a_full_queue_is_a_problem() -> None:
    async with NodeProcess(["engine.kind=echo", "engine.slots=1", "queue.max_waiting=0"]) as node:
        soak = Soak(node, Plan(clients=8, seconds=0.5), lambda *_: None)
        await soak.run()
    assert any(problem.startswith("Overloaded") for problem in soak.tally.problems)
