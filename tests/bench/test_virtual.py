"""The node in virtual time: its engine's arithmetic, and what the levels promise at twice the load, free of noise."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from node.bench import scores
from node.bench.figures import percentile
from node.bench.overload import Plan
from node.bench.virtual import Costs, Play, VirtualEngine, VirtualOverload, capacity
from node.bench.workload import DEFAULT_MIX, Ask, Mixture
from node.engine.batch import Row, Targets
from node.generation import Event, Finished, Level, Request, Started, Token
from node.layers import load
from node.settings import Settings

COSTS = Costs(base_s=0.01, stream_s=0.01, prompt_token_s=0.001, targets=Targets(0.1, 0.2, 0.5))


def settings(**queue: str) -> Settings:
    return load(environment={}, flags={f"queue.{key}": value for key, value in queue.items()})


def request(id: str, prompt: int, answer: int, level: Level = "standard") -> Request:
    return Request(id, (0,) * prompt, answer, level=level)


def test_one_request_takes_what_its_steps_cost() -> None:
    engine, seen = VirtualEngine(COSTS), list[tuple[float, Event]]()
    engine.submit(request("a", 100, 3), lambda event: seen.append((round(engine.now, 6), event)))
    while engine.busy:
        engine.step()
    times = [at for at, event in seen if isinstance(event, Token)]
    assert times == [0.11, 0.13, 0.15]
    assert seen[-1] == (0.15, Finished("length", 100, 3))
    assert COSTS.alone.ttft_s(100) == pytest.approx(0.12)


def test_a_long_prompt_is_read_in_pieces_beside_a_stream() -> None:
    engine, tokens = VirtualEngine(COSTS), list[float]()
    engine.submit(request("streams", 2, 99), lambda event: tokens.append(engine.now))
    engine.step()
    engine.submit(request("long", 1000, 1), lambda event: None)
    for _ in range(5):
        engine.step()
    assert all(later - now <= 0.1 + 1e-9 for now, later in itertools.pairwise(tokens))


def test_slow_streams_leave_prompts_as_much_of_a_step_as_in_the_engine() -> None:
    rows = [Row(slot, 1, 9, 2) for slot in range(7)] + [Row(7, 500, 0, 2)]
    assert COSTS.budget(rows) == pytest.approx(80, abs=1), (
        "streams take 80 ms of a target of 100; the step may take 160"
    )


def test_what_was_set_aside_is_read_again_and_goes_on() -> None:
    engine, seen = VirtualEngine(COSTS), list[Event]()
    engine.submit(replace(request("a", 100, 3), continued=(7, 8)), seen.append)
    while engine.busy:
        engine.step()
    assert seen == [Started(), Token(0, b"."), Finished("length", 100, 3)]
    assert engine.now == pytest.approx(0.112), "102 tokens are read"


def test_the_urgent_prompt_is_read_first() -> None:
    engine, order = VirtualEngine(COSTS), list[str]()
    for name, level in (("low", "background"), ("high", "critical")):
        engine.submit(request(name, 600, 1, level), lambda event, name=name: order.append(name))  # type: ignore[misc]
    while engine.busy:
        engine.step()
    assert order[0] == "high"


def test_the_held_cost_nothing_and_the_cancelled_end() -> None:
    engine, ends = VirtualEngine(COSTS), list[Event]()
    engine.submit(request("a", 10, 5), ends.append)
    engine.hold("a", True)
    assert not engine.busy
    engine.hold("a", False)
    engine.step()
    engine.cancel("a")
    engine.cancel("a")
    assert ends[-1] == Finished("cancelled", 10, 1)
    assert engine.sequences == 0


def test_capacity_is_what_full_slots_end_a_second() -> None:
    asks = [Ask(0.0, "standard", 100, 10, "") for _ in range(200)]
    alone, together = (capacity(iter(asks), slots, COSTS) for slots in (1, 4))
    assert alone == pytest.approx(1 / (0.11 + 9 * 0.02), rel=0.01)
    assert 1.1 * alone < together < 4 * alone


async def test_every_request_has_an_end_and_its_own_times() -> None:
    asks = [Ask(at / 10, "interactive", 50, 4, "") for at in range(100)]
    outcomes = await Play(settings(), Costs()).run(asks, until=100.0)
    assert len(outcomes) == 100
    assert {one.ending for one in outcomes} <= {"whole", "refused"}
    for one in outcomes:
        assert one.arrivals.times == sorted(one.arrivals.times)
        assert one.ttft_s is None or one.ttft_s >= COSTS.base_s / 10


async def test_what_finds_no_room_is_refused_with_a_word() -> None:
    asks = [Ask(0.0, "background", 50, 4, "") for _ in range(60)]
    outcomes = await Play(settings(max_waiting="8"), Costs()).run(asks, until=100.0)
    refused = [one for one in outcomes if one.ending == "refused"]
    assert len(refused) == 60 - 8 - 4
    assert all("wait" in one.why for one in refused)


@pytest.fixture(scope="module")
def asked() -> VirtualOverload:
    nodes = {"levels": settings(), "queue.policy=fifo": settings(policy="fifo")}
    plan = Plan(Mixture(DEFAULT_MIX), seconds=120.0, rounds=2)
    return VirtualOverload(nodes, plan, Costs(), lambda text: None)


async def test_at_twice_the_load_the_levels_keep_what_they_promise(asked: VirtualOverload) -> None:
    await asked.run()
    levels, fifo = ([run for turns in one.turns.values() for run in turns] for one in asked.settings)
    objective = asked.objective

    def attained(level: Level) -> float:
        return scores.attainment([one for run in levels for one in run.of(level)], objective)

    assert scores.problems(levels).value == 0
    late = [excess for run in levels for one in run.of("critical") if (excess := objective.excess_s(one)) is not None]
    assert percentile(late, 0.95) <= settings().engine.step_ms / 1e3, "within the objective and one step"
    assert attained("interactive") >= 0.9
    good, plain = (sum(scores.goodput(run, objective) for run in runs) for runs in (levels, fifo))
    assert good >= 1.5 * plain
    background = [one for run in levels for one in run.of("background")]
    assert sum(one.ending == "whole" for one in background) >= 10, "it progresses"


async def test_it_comes_out_the_same_each_time() -> None:
    plan = Plan(Mixture(DEFAULT_MIX), seconds=10.0, rounds=1)
    goods = []
    for _ in range(2):
        test = VirtualOverload({"as set": settings()}, plan, Costs(), lambda text: None)
        await test.run()
        ((run,),) = test.settings[0].turns.values()
        goods.append(scores.goodput(run, test.objective))
    assert goods[0] == goods[1] > 0
