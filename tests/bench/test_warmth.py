"""Real nodes with warm prefixes: what their waits come to, and one short run with the echo engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.bench.process import NodeProcess
from node.bench.replay import Ids, Step
from node.bench.warmth import Answered, Lives, Plan, Seen, ask, figures, quiet
from node.errors import EngineFailed
from tests.conftest import settings


def seen(
    warm_s: float = 0.1,
    cold_s: float = 1.0,
    rest_s: float = 0.1,
    bare_s: float = 0.1,
    after: int = 80,
    after_count: int = 16,
) -> Seen:
    return Seen(
        warm=[Answered(warm_s, 80)] * 16,
        cold=[cold_s] * 16,
        rest=[rest_s] * 16,
        bare=[(warm_s, bare_s)] * 16,
        boots=[(warm_s, cold_s)] * 3,
        restarted={
            "stopped": [Answered(warm_s, 80)] * after_count,
            "killed": [Answered(warm_s, after)] * after_count,
        },
        tokens=[100] * 16,
    )


def test_a_good_run_meets_everything() -> None:
    found = figures(seen(after_count=16), [80] * 4, [90] * 4)
    assert [figure.met for figure in found] == [True] * 6
    assert found[0].at_most == pytest.approx(135.0)
    assert found[1].value == pytest.approx(1.0)
    assert "alone it takes 100 ms" in found[1].detail
    assert found[2].value == pytest.approx(0.1)
    assert found[2].detail.endswith("1,280 of 1,600 tokens were warm; simulated 320, unlimited 360")


@pytest.mark.parametrize(
    ("of", "missed"),
    [
        (seen(warm_s=0.14), "median TTFT of hits"),
        (seen(bare_s=0.07), "TTFT of hits / llama.cpp alone, same rows and prefix"),
        (seen(cold_s=0.19), "all prompts, with / without prewarming"),
        (seen(cold_s=0.6), "TTFT of the top prefix after boot / cold"),
        (seen(after=74), "hit ratio lost, killed in the middle"),
    ],
)
def test_each_target_can_be_missed(of: Seen, missed: str) -> None:
    assert missed in {figure.name for figure in figures(of, [80] * 4, [90] * 4) if figure.met is False}


def test_few_requests_after_a_restart_are_shown_and_not_judged() -> None:
    lost = figures(seen(after=0, after_count=5), [80] * 4, [90] * 4)[-1]
    assert (lost.value, lost.met) == (80.0, None)


def test_a_run_without_a_hit_meets_nothing_that_is_about_hits() -> None:
    nothing = seen()
    nothing.warm, nothing.rest, nothing.bare = [Answered(1.0, 0)] * 16, [], []
    assert figures(nothing, [0] * 4, [0] * 4)[0].met is False


async def test_a_prompt_of_ids_is_asked_as_it_is(echo_process: NodeProcess) -> None:
    answered = await ask(echo_process.url, tuple(range(97, 120)), "somebody")
    assert answered.seconds > 0
    assert answered.cached == 0
    await quiet(echo_process)


async def test_a_prompt_that_was_read_otherwise_is_an_error(
    echo_process: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Longer(tuple[int, ...]):
        def __len__(self) -> int:
            return 99

    with pytest.raises(EngineFailed, match="99 tokens"):
        await ask(echo_process.url, Longer((97, 98)), "somebody")


async def test_warming_that_takes_too_long_is_not_waited_for_but_told(
    tmp_path: Path, echo_process: NodeProcess
) -> None:
    lives = Lives(settings(engine_kind="echo"), [], "echo", tmp_path, Plan(requests=1, warm_s=0.2))
    await lives._warmed(echo_process)
    assert not lives.seen.warmed
    cut = seen()
    cut.warmed = False
    assert [figure.detail.endswith("warming was cut short") for figure in figures(cut, [80], [90])].count(True) == 1


async def test_three_lives_beside_a_cold_node(tmp_path: Path) -> None:
    """Hits and restarts are real; the echo engine's waits say nothing."""
    prompts = [
        (*b"all of these begin with the very same words, and far more of them than fit a block " * 2, n)
        for n in b"abcdefgh"
    ]
    steps = [Step(float(number), ids) for number, ids in enumerate(prompts)]
    told: list[str] = []
    plan = Plan(requests=4, warm_s=5.0)
    alone: list[int] = []

    def bare(ids: Ids, warm: int) -> float:
        alone.append(len(ids) - warm)
        return 0.5

    lives = Lives(settings(engine_kind="echo"), ["engine.kind=echo"], "echo", tmp_path, plan, bare)
    await lives.run(steps[:4], steps[4:], told.append)
    assert len(told) == plan.steps
    assert len(lives.seen.warm) == len(lives.seen.cold) == 4
    assert [(answered.seconds, 0.5) for answered in lives.seen.warm] == lives.seen.bare
    assert alone == [len(step.ids) - warm.cached for step, warm in zip(steps[4:], lives.seen.warm, strict=True)]
    assert len(lives.seen.boots) == 3
    assert lives.seen.warmed
    assert {life: len(after) for life, after in lives.seen.restarted.items()} == {"stopped": 2, "killed": 2}
    assert all(answered.cached > 100 for answered in lives.seen.warm)
    assert all(answered.cached > 100 for after in lives.seen.restarted.values() for answered in after)
