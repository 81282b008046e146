"""What a reader keeps and what it asks for, whatever the connections do; when it tries again."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.answer import Answer, TextDelta, TextRewind
from node.chunks import BrokenStream, Chunk, ClientError, Unreachable, chunk_of
from node.errors import Conflict, EngineFailed, Gone, NodeError, NotFound, Overloaded, Unavailable
from node.resume import Effort, Ledger, Patience


def chunk(seq: int, text: str | None = None, *, finish: str = "") -> Chunk:
    said = "null" if text is None else f'"{text}"'
    reason = f'"{finish}"' if finish else "null"
    choice = f'{{"delta":{{"content":{said}}},"finish_reason":{reason}}}'
    return chunk_of(f'{{"id":"c1","model":"m","choices":[{choice}],"outpost":{{"seq":{seq}}}}}')


def rewind(seq: int) -> Chunk:
    return chunk_of(f'{{"choices":[],"outpost":{{"seq":{seq},"rewind":true}}}}')


def opened(start: int = 0) -> Ledger:
    ledger = Ledger(Answer(0.0), start)
    assert ledger.opened() is False
    return ledger


class TestLedger:
    def test_numbers_and_text_go_to_the_reader(self) -> None:
        ledger = opened()
        assert ledger.take(chunk(-1, ""), 1.0) is None
        assert ledger.take(chunk(0, "a"), 1.0) == TextDelta("a", 1.0, 0)
        assert ledger.take(chunk(4, "bcd"), 1.5) == TextDelta("bcd", 1.5, 4)
        ledger.take(chunk(4, finish="stop"), 2.0)
        done = ledger.done(2.0)
        assert (ledger.last, done.finish_reason, done.resumes, done.stalls) == (4, "stop", 0, 0)

    def test_what_comes_again_is_dropped_but_may_end_the_answer(self) -> None:
        ledger = opened()
        ledger.take(chunk(0, "a"), 1.0)
        ledger.take(chunk(2, "b"), 1.0)
        assert ledger.opened() is True
        assert ledger.take(chunk(1, "x"), 2.0) is None
        assert ledger.take(chunk(2, "b"), 2.0) is None
        assert ledger.take(chunk(3, "c"), 2.0) == TextDelta("c", 2.0, 3)
        ledger.opened()
        assert ledger.take(chunk(3, finish="length"), 3.0) is None
        done = ledger.done(3.0)
        assert (done.finish_reason, done.resumes) == ("length", 2)

    def test_several_chunks_under_one_number_are_not_repetitions(self) -> None:
        ledger = opened()
        assert [ledger.take(chunk(5, text), 1.0) for text in "ab"] == [TextDelta("a", 1.0, 5), TextDelta("b", 1.0, 5)]

    def test_a_node_without_numbers_is_read_as_it_comes(self) -> None:
        ledger = opened()
        plain = chunk_of('{"choices":[{"delta":{"content":"a"}}]}')
        assert [ledger.take(plain, 1.0)] * 2 == [TextDelta("a", 1.0)] * 2
        assert ledger.last == -1

    def test_a_rewind_gives_back_exactly_the_text_that_fell(self) -> None:
        ledger = opened()
        for seq, text in ((0, "a"), (1, "b"), (4, "cde"), (5, "f")):
            ledger.take(chunk(seq, text), 1.0)
        assert ledger.take(rewind(4), 2.0) == TextRewind(4, "f", 2.0)
        assert not ledger.torn
        assert ledger.take(chunk(5, "g"), 2.0) == TextDelta("g", 2.0, 5)

    def test_a_rewind_into_a_chunk_goes_back_to_the_border_before_it(self) -> None:
        ledger = opened()
        for seq, text in ((0, "a"), (4, "bcde"), (5, "f")):
            ledger.take(chunk(seq, text), 1.0)
        assert ledger.take(rewind(2), 2.0) == TextRewind(0, "bcdef", 2.0)
        assert ledger.torn, "this connection goes on after 2, and 1 and 2 would be missing"
        ledger.opened()
        assert not ledger.torn
        assert ledger.take(chunk(1, "x"), 3.0) == TextDelta("x", 3.0, 1)

    def test_a_rewind_before_the_first_entry_of_this_reader(self) -> None:
        ledger = opened(start=100)
        ledger.take(chunk(100, "a"), 1.0)
        assert ledger.rewind(99, 2.0) == TextRewind(99, "a", 2.0)
        assert ledger.rewind(40, 2.0) == TextRewind(40, "", 2.0)
        assert (ledger.last, ledger.torn) == (40, False)
        assert ledger.rewind(40, 2.0) is None

    @pytest.mark.parametrize(
        ("words", "to"),
        [("last entry is number 1; … resume from 2.", 1), ("no number at all", -1), ("last entry is number 9", 1)],
    )
    def test_a_refusal_as_ahead_always_leads_back(self, words: str, to: int) -> None:
        ledger = opened()
        for seq, text in ((0, "a"), (1, "b"), (2, "c")):
            ledger.take(chunk(seq, text), 1.0)
        assert ledger.ahead(Conflict(words), 2.0) == TextRewind(to, "abc"[to + 1 :], 2.0)
        assert ledger.last == to

    def test_stalls_are_gaps_between_texts(self) -> None:
        ledger = opened()
        for seq, at in enumerate((9.0, 9.5, 12.0, 12.9, 14.0)):  # the wait for the first is none
            ledger.take(chunk(seq, "x"), at)
        ledger.take(chunk(4, finish="stop"), 30.0)
        done = ledger.done(30.0)
        assert (done.stalls, done.stalled_s) == (2, pytest.approx(3.6))

    def test_errors_come_through(self) -> None:
        with pytest.raises(EngineFailed):
            opened().take(chunk_of('{"error":{"message":"m","code":"engine_failed"}}'), 1.0)

    def test_an_answer_without_an_end_is_not_done(self) -> None:
        with pytest.raises(BrokenStream):
            opened().done(1.0)


@dataclass
class PowerCutNode:
    """Entries a chunk may cover several of; `count` is what it has, and may shrink."""

    texts: list[str]
    out: list[str] = field(default_factory=list)

    def chunks(self, start: int, end: int, size: int) -> list[Chunk]:
        borders = [*range(start + size, end, size), end]
        return [
            chunk(to - 1, "".join(self.texts[at:to]))
            for at, to in zip([start, *borders], borders, strict=False)
            if to > at
        ]


@given(
    count=st.integers(1, 40),
    lives=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5), st.integers(-1, 39)), max_size=8),
)
def test_whatever_breaks_the_reader_ends_with_the_text(count: int, lives: list[tuple[int, int, int]]) -> None:
    """Each life sends some chunks, from a little too early on, and may then lose its last entries."""
    node = PowerCutNode([f"{number}." for number in range(count)])
    ledger, shown = Ledger(Answer(0.0)), ""

    def take(said: Chunk) -> None:
        nonlocal shown
        event = ledger.take(said, 1.0)
        if isinstance(event, TextRewind):
            assert shown.endswith(event.text_dropped)
            shown = shown.removesuffix(event.text_dropped)
        elif event:
            shown += event.text

    for end, size, lost in [*lives, (count, 3, -2)]:
        ledger.opened()
        start = ledger.last + 1
        for said in node.chunks(start, max(start, min(end, count)), size):
            take(said)
        if -1 <= lost < ledger.last:
            take(rewind(lost))
        assert shown == "".join(node.texts[: ledger.last + 1])
    assert shown == "".join(node.texts)


def effort(rng: float = 1.0, **patience: float) -> Effort:
    return Effort(Patience(**patience), lambda: rng)


class TestEffort:
    def test_pauses_double_up_to_a_limit_and_start_anew_after_progress(self) -> None:
        trying = effort(first_s=0.1, most_s=1.0, give_up_s=100)
        trying.opened(0.0)
        pauses = [trying.after(BrokenStream("m"), 1.0) for _ in range(6)]
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
        trying.progress()
        assert trying.after(BrokenStream("m"), 2.0) == pytest.approx(0.1)

    def test_jitter_takes_at_most_half(self) -> None:
        assert effort(0.0, first_s=0.1).after(BrokenStream("m"), 0.0) == pytest.approx(0.05)
        assert effort(0.5, first_s=0.1).after(BrokenStream("m"), 0.0) == pytest.approx(0.075)

    def test_what_the_node_says_is_the_least(self) -> None:
        for kind in (Overloaded, Unavailable):
            assert effort(first_s=0.1).after(kind("m", retry_after=7), 0.0) == 7

    def test_a_wait_that_would_be_in_vain_is_not_begun(self) -> None:
        with pytest.raises(Overloaded):
            effort(give_up_s=5).after(Overloaded("m", retry_after=7), 0.0)

    def test_an_outage_has_an_end(self) -> None:
        trying = effort(give_up_s=10.0)
        trying.opened(0.0)
        trying.after(BrokenStream("m"), 1.0)
        trying.after(Unreachable("m"), 10.0)
        with pytest.raises(Unreachable):
            trying.after(Unreachable("m"), 11.0)

    def test_a_connection_that_held_ends_an_outage(self) -> None:
        trying = effort(give_up_s=10.0)
        for now in (0.0, 9.0, 18.0, 27.0):
            trying.opened(now)
            trying.after(BrokenStream("m"), now + 6.0)

    @pytest.mark.parametrize("error", [NotFound("m"), Gone("m"), EngineFailed("m"), ClientError("m"), Conflict("m")])
    def test_what_no_return_can_mend_is_raised(self, error: NodeError) -> None:
        with pytest.raises(type(error)):
            effort().after(error, 0.0)

    def test_nobody_there_at_the_start_is_said_at_once_unless_asked_otherwise(self) -> None:
        with pytest.raises(Unreachable):
            effort().after(Unreachable("m"), 0.0)
        trying = effort(start_s=3.0)
        trying.after(Unreachable("m"), 0.0)
        with pytest.raises(Unreachable):
            trying.after(Unreachable("m"), 3.0)

    def test_a_node_that_says_come_back_and_has_nothing_is_not_believed_for_ever(self) -> None:
        trying = effort()
        for _ in range(8):
            trying.opened(0.0)
            trying.after(Unavailable("m"), 0.0)
        trying.opened(0.0)
        with pytest.raises(Unavailable):
            trying.after(Unavailable("m"), 0.0)
