"""The search, over a bench on which every speed and every quality is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from node.errors import EngineFailed, ModelFileError, OperatorError
from node.settings import Engine
from node.tuning.gate import Quality
from node.tuning.tune import Limits, Report, Row, Space, Tuner
from node.tuning.variants import FLOOR, FORMS, NOISE, Speed, Variant

GOOD, BAD = Quality(0.005, 0.95, 1000), Quality(0.06, 0.87, 1000)
LIMITS = Limits(max_kl=0.02, min_agreement=0.92, min_gain=1.05, budget_s=1000)
SHIPPED = Speed(100, 300, 200)


@dataclass
class Scripted:
    """A bench that knows what comes out; a turn takes `turn_s` of its own clock."""

    gains: Mapping[str, Speed] = field(default_factory=dict)  # by form
    steps: Mapping[tuple[str, int | str], float] = field(default_factory=dict)  # factor of a setting
    qualities: Mapping[str, Quality] = field(default_factory=dict)  # by form
    quality_of: Callable[[Variant], Quality] | None = None
    unmade: Mapping[str, str] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    load: Callable[[int], float] = lambda turn: 1.0
    turn_s: float = 1.0
    slower: Callable[[int], float] = lambda turn: 1.0  # how many times as long a turn takes, by its number
    make_s: float = 0.0
    gate_s: float = 0.0
    now: float = 0.0
    made: set[str] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)
    turns: list[Variant] = field(default_factory=list)
    judged: list[Variant] = field(default_factory=list)
    said: list[tuple[str, int, int]] = field(default_factory=list)

    def make(self, form: str) -> int:
        if form in self.unmade:
            raise ModelFileError(self.unmade[form])
        self.now += self.make_s
        self.made.add(form)
        assert len(self.made) <= 2, "the best and the one that is tried, no more fill the disk"
        return 1000

    def drop(self, form: str) -> None:
        self.made.discard(form)
        self.dropped.append(form)

    def speed(self, variant: Variant) -> Speed:
        self.turns.append(variant)
        self.now += self.turn_s * self.slower(len(self.turns))
        assert not variant.form or variant.form in self.made
        if variant.form in self.broken:
            raise EngineFailed("It broke.")
        factor = self.load(len(self.turns))
        for key, value in variant.differences(BASE).items():
            factor *= self.steps.get((key, value), 0.9)
        gain = self.gains.get(variant.form, Speed(0.8, 0.8, 0.8)) if variant.form else Speed(1, 1, 1)
        return SHIPPED.times(gain).times(Speed(factor, factor, factor))

    def quality(self, variant: Variant) -> Quality:
        self.judged.append(variant)
        self.now += self.gate_s
        return self.quality_of(variant) if self.quality_of else self.qualities.get(variant.form, GOOD)


BASE = Engine()
SPACE = Space(base=BASE, shipped="Q4_1", parameters=10_000_000, bytes=900, room=None, cores=2, threads=2)


def tune(bench: Scripted, space: Space = SPACE, limits: Limits = LIMITS) -> Report:
    report = Tuner(space, limits, bench, lambda *what: bench.said.append(what), lambda: bench.now).run()
    assert all(0 <= done <= total for _, done, total in bench.said)
    assert bench.said[0][0] == "as shipped: measuring"
    return report


def row(report: Report, form: str, **engine: int | str) -> Row:
    (found,) = [one for one in report.rows if one.variant.form == form and one.variant.differences(BASE) == engine]
    return found


def test_the_fastest_that_passes_the_gate_wins_not_the_fastest() -> None:
    bench = Scripted(
        gains={"Q8_0": Speed(1.2, 2.4, 1.4), "Q4_0": Speed(1.9, 3, 2), "Q6_K": Speed(0.7, 2, 1)},
        qualities={"Q4_0": BAD},
    )
    report = tune(bench)
    assert report.winner is row(report, "Q8_0")
    assert report.winner.verdict == "best"
    assert report.winner.ratio is not None
    assert report.winner.ratio.score == pytest.approx(Speed(1.2, 2.4, 1.4).score)
    assert report.shipped_speed == SHIPPED
    refused = row(report, "Q4_0")
    assert (refused.verdict, refused.why) == ("refused", "KL 0.0600 is over 0.02")
    assert refused.ratio is not None
    assert refused.ratio.prefill == pytest.approx(3), "people see what the gate cost"
    assert row(report, "Q6_K").why == "decode at 0.70 x is a loss"
    assert report.why == ""


def test_where_nothing_is_faster_nothing_wins_and_the_report_says_so() -> None:
    report = tune(Scripted())
    assert report.winner is None
    assert report.why == "No variant was faster within the quality limits."
    assert {one.verdict for one in report.rows[1:]} == {"slower"}
    assert report.rows[0].verdict == "shipped"
    assert report.shipped_speed is None, "there was no last run"


def test_where_all_that_is_faster_is_worse_nothing_wins() -> None:
    report = tune(Scripted(gains={form: Speed(3, 3, 3) for form in FORMS}, quality_of=lambda variant: BAD))
    assert report.winner is None
    assert {one.verdict for one in report.rows[1:] if one.variant.form} == {"refused"}


def test_a_quality_that_is_no_number_is_refused() -> None:
    bench = Scripted(gains={"Q8_0": Speed(2, 2, 2)}, qualities={"Q8_0": Quality(float("nan"), 1.0, 10)})
    assert row(tune(bench), "Q8_0").verdict == "refused"


def test_only_what_is_faster_goes_to_the_gate() -> None:
    bench = Scripted(gains={"Q8_0": Speed(2, 2, 2), "Q4_0": Speed(1.5, 1.5, 1.5)})
    tune(bench)
    assert [variant.form for variant in bench.judged] == ["Q8_0"]


def test_a_better_one_takes_the_place_and_the_file_of_the_first_goes() -> None:
    bench = Scripted(gains={"Q8_0": Speed(1.2, 1.2, 1.2), "Q4_0": Speed(1.5, 1.5, 1.5)})
    report = tune(bench)
    assert report.winner is row(report, "Q4_0")
    assert (row(report, "Q8_0").verdict, row(report, "Q8_0").why) == ("better", "Q4_0 is better still")
    assert bench.made == {"Q4_0"}


def test_settings_are_tried_on_top_of_the_best_form_and_of_each_other() -> None:
    bench = Scripted(gains={"Q8_0": Speed(1.2, 1.2, 1.2)}, steps={("threads", 1): 1.3, ("ubatch", 128): 1.1})
    report = tune(bench)
    assert report.winner is not None
    assert report.winner.variant.differences(BASE) == {"threads": 1, "ubatch": 128}
    assert report.winner.variant.form == "Q8_0"
    assert report.winner.ratio is not None
    assert report.winner.ratio.decode == pytest.approx(1.2 * 1.3 * 1.1)
    assert row(report, "Q8_0", threads=1).verdict == "better"
    assert [variant.form for variant in bench.judged] == ["Q8_0"], "threads and batches leave the words alone"


def test_threads_of_the_file_as_shipped_need_no_gate() -> None:
    bench = Scripted(steps={("threads", 1): 1.3})
    report = tune(bench)
    assert report.winner is row(report, "", threads=1)
    assert report.winner.quality == Quality(0.0, 1.0, 0)
    assert bench.judged == []


def test_settings_alone_can_win() -> None:
    report = tune(Scripted(steps={("flash_attention", "off"): 1.2}))
    assert report.winner is row(report, "", flash_attention="off")
    assert report.winner.bytes == SPACE.bytes


def test_a_setting_that_changes_the_words_goes_to_the_gate_with_the_form() -> None:
    bench = Scripted(
        gains={"Q8_0": Speed(1.2, 1.2, 1.2)},
        steps={("kv_type", "q8_0"): 1.5},
        quality_of=lambda variant: BAD if variant.engine.kv_type == "q8_0" else GOOD,
    )
    report = tune(bench)
    assert row(report, "Q8_0", kv_type="q8_0").verdict == "refused"
    assert report.winner is row(report, "Q8_0")


def test_what_the_operator_has_set_is_left_alone() -> None:
    space = Space(
        base=BASE, shipped="Q4_1", parameters=1, bytes=900, room=None, cores=2, threads=2, fixed=frozenset({"threads"})
    )
    report = tune(Scripted(steps={("threads", 1): 9.0}), space)
    assert report.winner is None
    assert not any("threads" in one.variant.differences(BASE) for one in report.rows)


def test_a_form_that_cannot_be_made_or_breaks_is_a_row_and_the_search_goes_on() -> None:
    bench = Scripted(
        gains={"Q4_0": Speed(1.5, 1.5, 1.5), "Q4_K_M": Speed(2, 2, 2)},
        unmade={"Q8_0": "There is no space."},
        broken=frozenset({"Q4_K_M"}),
    )
    report = tune(bench)
    assert (row(report, "Q8_0").verdict, row(report, "Q8_0").why) == ("failed", "There is no space.")
    assert (row(report, "Q4_K_M").verdict, row(report, "Q4_K_M").why) == ("failed", "It broke.")
    assert report.winner is row(report, "Q4_0")


def test_the_shipped_file_must_run() -> None:
    with pytest.raises(EngineFailed):
        tune(Scripted(broken=frozenset({""})))


def test_what_is_too_large_is_skipped_with_the_numbers() -> None:
    space = Space(base=BASE, shipped="Q4_1", parameters=10_000_000, bytes=900, room=9_000_000, cores=2, threads=2)
    report = tune(Scripted(), space)
    assert row(report, "Q8_0").verdict == "skipped"
    assert "MB are free" in row(report, "Q8_0").why
    assert row(report, "Q4_0").verdict == "slower"


def test_the_time_is_bounded_and_what_it_did_not_reach_is_said() -> None:
    bench = Scripted(gains={"Q8_0": Speed(1.2, 1.2, 1.2), "Q5_K_M": Speed(9, 9, 9)}, turn_s=10)
    report = tune(bench, limits=Limits(max_kl=1, min_agreement=0, min_gain=1.05, budget_s=100))
    assert report.winner is row(report, "Q8_0")
    assert report.seconds <= 100
    assert (row(report, "Q5_K_M").verdict, row(report, "Q5_K_M").why) == ("skipped", "no time was left")
    assert report.rounds == 1


@pytest.mark.parametrize(
    ("turn_s", "trial", "rounds"), [(1, 4, 5), (10, 4, 5), (25, 2, 3), (50, 2, 1), (90, 2, 1)], ids=str
)
def test_a_slow_machine_gets_fewer_rounds(turn_s: float, trial: int, rounds: int) -> None:
    bench = Scripted(gains={"Q8_0": Speed(2, 2, 2)}, turn_s=turn_s)
    report = tune(bench, limits=Limits(max_kl=1, min_agreement=0, min_gain=1.05, budget_s=500))
    assert report.winner is row(report, "Q8_0")
    assert report.rounds == rounds
    assert [variant.form for variant in bench.turns[1:]][:trial].count("Q8_0") == trial / 2
    assert report.seconds <= 500


def test_a_slow_gate_takes_rounds_from_the_last_run_and_is_reckoned_with_from_then_on() -> None:
    bench = Scripted(gains={"Q8_0": Speed(1.2, 1.2, 1.2), "Q4_0": Speed(2, 2, 2)}, turn_s=2, gate_s=60)
    report = tune(bench, limits=Limits(max_kl=1, min_agreement=0, min_gain=1.05, budget_s=100))
    assert report.winner is row(report, "Q8_0")
    assert (row(report, "Q4_0").verdict, row(report, "Q4_0").why) == ("skipped", "no time was left")
    assert report.rounds == 5
    assert report.seconds <= 100
    slower = Scripted(gains={"Q8_0": Speed(1.2, 1.2, 1.2)}, turn_s=2, gate_s=80)
    assert tune(slower, limits=Limits(max_kl=1, min_agreement=0, min_gain=1.05, budget_s=100)).rounds == 1
    assert slower.now <= 100


def test_where_nothing_could_be_tried_nobody_says_that_nothing_was_faster() -> None:
    with pytest.raises(OperatorError, match="One measurement takes 200 s, of 500 s in all") as error:
        tune(Scripted(turn_s=200), limits=Limits(max_kl=1, min_agreement=0, min_gain=1.05, budget_s=500))
    assert "no time was left" in error.value.message
    assert "tune.budget_s" in (error.value.hint or "")


def test_where_nothing_fits_the_memory_that_is_what_is_said() -> None:
    fixed = frozenset({"threads", "flash_attention", "kv_type", "ubatch", "batch"})
    space = Space(base=BASE, shipped="Q4_1", parameters=10_000_000, bytes=900, room=0, cores=2, threads=2, fixed=fixed)
    with pytest.raises(OperatorError, match="MB are free"):
        tune(Scripted(), space)


def test_a_gain_that_the_last_run_does_not_see_does_not_win() -> None:
    """The machine is quiet by turns, so that the trial flatters; the last run, which is longer, knows better."""
    bench = Scripted(gains={"Q8_0": Speed(1.04, 1.04, 1.04)})
    report = tune(bench)
    assert report.winner is None
    assert row(report, "Q8_0").verdict == "slower"
    assert "1.04, under 1.05" in report.why


def test_a_load_that_hits_both_sides_changes_nothing() -> None:
    slower_and_slower = Scripted(gains={"Q8_0": Speed(1.5, 1.5, 1.5)}, load=lambda turn: 1 / (1 + turn // 2))
    assert tune(slower_and_slower).winner is not None


@dataclass
class Flattering(Scripted):
    """A bench on which some variants are worse in the last run than in their trial."""

    fades: Callable[[Variant], bool] = lambda variant: False

    def speed(self, variant: Variant) -> Speed:
        speed = super().speed(variant)
        late = self.said and self.said[-1][0].endswith("the last run")
        return speed.times(Speed(0.3, 1, 1)) if late and self.fades(variant) else speed


def test_a_gain_with_a_loss_in_the_last_run_does_not_win() -> None:
    bench = Flattering(gains={"Q8_0": Speed(1.5, 1.5, 1.5)}, fades=lambda variant: bool(variant.form))
    report = tune(bench)
    assert report.winner is None
    assert report.why == "Q8_0 was not confirmed: in the last run decode was 0.45 x: a loss."
    assert row(report, "Q8_0").why in report.why


def test_where_a_setting_only_seemed_to_help_the_form_still_wins() -> None:
    bench = Flattering(
        gains={"Q8_0": Speed(1.5, 1.5, 1.5)},
        steps={("threads", 1): 1.5},
        fades=lambda variant: variant.engine.threads == 1,
    )
    report = tune(bench)
    assert report.winner is row(report, "Q8_0")
    assert report.winner.verdict == "best"
    assert report.winner_speed == SHIPPED.times(Speed(1.5, 1.5, 1.5))
    assert row(report, "Q8_0", threads=1).why == "in the last run decode was 0.68 x: a loss"


def test_of_two_good_finalists_the_better_wins() -> None:
    bench = Flattering(
        gains={"Q8_0": Speed(4, 3, 3)}, steps={("threads", 1): 1.1}, fades=lambda variant: variant.engine.threads == 1
    )
    report = tune(bench)
    assert report.winner is row(report, "Q8_0")
    assert row(report, "Q8_0", threads=1).why == "Q8_0 is better still"


def test_a_setting_that_helped_without_a_form_may_still_fade() -> None:
    bench = Flattering(steps={("threads", 1): 1.5}, fades=lambda variant: variant.engine.threads == 1)
    assert tune(bench).winner is None


WITH_ONNX = replace(SPACE, onnx_bytes=5000)


@pytest.mark.parametrize(("gain", "wins"), [(1.7, True), (1.6, False)], ids=["by far", "by a little"])
def test_the_other_engine_must_win_by_more(gain: float, wins: bool) -> None:
    bench = Scripted(gains={"Q8_0": Speed(1.2, 1.2, 1.2), "ONNX": Speed(gain, gain, gain)}, steps={("kind", "onnx"): 1})
    report = tune(bench, WITH_ONNX)
    found = row(report, "ONNX", kind="onnx")
    assert (report.winner is found) is wins
    if wins:
        assert not any(one.variant.form == "ONNX" and "ubatch" in one.variant.differences(BASE) for one in report.rows)
        assert bench.made == {"ONNX"}
        assert "ONNX" not in bench.dropped
    else:
        assert found.why == "score 1.60 does not beat 1.20 by enough for another engine"
        assert report.winner is row(report, "Q8_0")


def test_the_other_engine_passes_the_same_gate() -> None:
    bench = Scripted(gains={"ONNX": Speed(2, 2, 2)}, steps={("kind", "onnx"): 1}, qualities={"ONNX": BAD})
    report = tune(bench, WITH_ONNX)
    assert report.winner is None
    assert row(report, "ONNX", kind="onnx").verdict == "refused"


def test_without_a_folder_there_is_no_other_engine() -> None:
    assert not any(one.variant.form == "ONNX" for one in tune(Scripted()).rows)


def test_turns_are_taken_in_changing_order() -> None:
    bench = Scripted(gains={"Q8_0": Speed(2, 2, 2)})
    tune(bench)
    assert [variant.form for variant in bench.turns[1:5]] == ["", "Q8_0", "Q8_0", ""]
    assert [variant.form for variant in bench.turns[-10:]] == [
        "",
        "Q8_0",
        "Q8_0",
        "",
        "",
        "Q8_0",
        "Q8_0",
        "",
        "",
        "Q8_0",
    ]


@given(
    gains=st.dictionaries(st.sampled_from(list(FORMS)), st.builds(Speed, *[st.floats(0.5, 4)] * 3)),
    bad=st.sets(st.sampled_from(list(FORMS))),
    factors=st.dictionaries(
        st.sampled_from([("threads", 1), ("flash_attention", "off"), ("kv_type", "q8_0"), ("ubatch", 128)]),
        st.floats(0.5, 2),
    ),
    budget=st.floats(10, 400),
)
def test_whatever_is_measured_the_winner_is_good_and_faster(
    gains: dict[str, Speed], bad: set[str], factors: dict[tuple[str, int | str], float], budget: float
) -> None:
    bench = Scripted(gains=gains, steps=factors, qualities=dict.fromkeys(bad, BAD))
    limits = Limits(max_kl=0.02, min_agreement=0.92, min_gain=1.05, budget_s=budget)
    report = tune(bench, limits=limits)
    assert report.seconds <= max(budget, 11)
    if winner := report.winner:
        assert winner.variant.form not in bad
        assert winner.quality in (GOOD, Quality(0.0, 1.0, 0))
        assert winner.ratio is not None
        assert winner.ratio.score >= limits.min_gain
        assert winner.ratio.least >= FLOOR
        assert bench.made <= {winner.variant.form}
        better = [
            one
            for one in report.rows
            if one.verdict == "refused" or (one.ratio and one.ratio.score > winner.ratio.score * (1 + NOISE) * 1.001)
        ]
        assert all(one.verdict == "refused" or one.why.endswith("is a loss") for one in better)
    else:
        assert report.why


def test_a_machine_that_becomes_slow_does_not_carry_it_past_its_budget() -> None:
    bench = Scripted(gains={"Q8_0": Speed(1.2, 2.4, 1.4)}, turn_s=3, slower=lambda turn: 1.0 if turn < 20 else 6.0)
    report = tune(bench, limits=replace(LIMITS, budget_s=150))
    assert report.seconds <= 150 + 18
    skipped = [one.why for one in report.rows if one.verdict == "skipped"]
    assert "no time was left to measure it to the end" in skipped or "no time was left" in skipped


def test_a_last_run_that_is_cut_short_counts_its_whole_rounds() -> None:
    gains = {"Q8_0": Speed(1.2, 2.4, 1.4)}
    turns = len(_turns(Scripted(gains=gains)))
    cut = Scripted(gains=gains, slower=lambda turn: 1.0 if turn <= turns - 6 else 40.0)
    report = tune(cut, limits=replace(LIMITS, budget_s=turns + 60))
    assert report.winner is not None
    assert 1 <= report.rounds < 5
    none = Scripted(gains=gains)
    none.slower = lambda turn: 40.0 if none.said[-1][0].endswith("the last run") else 1.0
    report = tune(none, limits=replace(LIMITS, budget_s=turns + 1))
    assert (report.winner, report.why) == (None, "No time was left for the last run.")


def _turns(bench: Scripted) -> list[Variant]:
    tune(bench)
    return bench.turns


@given(st.lists(st.floats(0.2, 9), min_size=1, max_size=40), st.floats(60, 400), st.floats(0, 10), st.floats(0, 20))
@limits(max_examples=100)
def test_whatever_the_machine_does_only_the_last_step_may_end_late(
    times: list[float], budget_s: float, make_s: float, gate_s: float
) -> None:
    bench = Scripted(
        gains={"Q8_0": Speed(1.2, 2.4, 1.4), "Q5_K": Speed(1.1, 1.4, 1.1)},
        slower=lambda turn: times[turn % len(times)],
        make_s=make_s,
        gate_s=gate_s,
    )
    try:
        report = tune(bench, limits=replace(LIMITS, budget_s=budget_s))
    except OperatorError:
        return
    assert report.seconds <= budget_s + max(times) + make_s + gate_s
