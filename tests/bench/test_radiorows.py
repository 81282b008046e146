"""Frames in noise: what is lost is counted, and a wrong text would be seen."""

from __future__ import annotations

import random

import pytest

from node.bench import radiorows
from node.bench.radiorows import Heard, bent, figures, found, hear, lone, misled
from node.errors import LinkError
from node.link import radio
from node.link.radio import Received


@pytest.mark.parametrize("rate", radiorows.ERROR_RATES)
def test_frames_are_lost_or_right(rate: float) -> None:
    heard = hear(120, rate, 3)
    assert (heard.sent, heard.wrong) == (120, 0)
    assert 100 < heard.came <= 120
    assert heard.air > heard.text > 120 * 20


def test_more_wrong_bits_need_more_mending() -> None:
    few, many = hear(100, 1e-4, 1), hear(100, 3e-3, 1)
    assert few.mended < many.mended
    assert few.air / few.text < many.air / many.text


def test_as_many_bits_are_bent_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radiorows, "_SLIPS", 0.0)
    clean = bytes(1 << 16)
    for rate in (1e-3, 1e-2):
        wrong = int.from_bytes(bent(clean, rate, random.Random(2)), "big").bit_count()
        assert wrong == pytest.approx(rate * 8 * len(clean), rel=0.15)


def test_bytes_vanish_and_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radiorows, "_SLIPS", 0.5)
    rng = random.Random(1)
    assert {len(bent(bytes(50), 1e-4, rng)) for _ in range(40)} == {49, 50, 51}


def test_a_wrong_text_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(radio.Reader):
        def feed(self, data: bytes) -> list[Received | LinkError]:
            return [
                Received(one.payload + b"!", one.sequence, 0, one.size) if isinstance(one, Received) else one
                for one in super().feed(data)
            ]

    monkeypatch.setattr(radiorows, "Reader", Careless)
    heard = hear(20, 1e-4, 1)
    assert (heard.came, heard.lost) == (0, 100)
    assert heard.wrong > 15
    assert lone(1, 1) == (0, 1)


def test_a_text_that_comes_twice_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuttering(radio.Reader):
        def feed(self, data: bytes) -> list[Received | LinkError]:
            return 2 * super().feed(data)

    monkeypatch.setattr(radiorows, "Reader", Stuttering)
    heard = hear(10, 1e-4, 1)
    assert heard.came == heard.wrong > 5


def test_a_frame_is_found_in_noise() -> None:
    assert lone(2, 4) == (2, 0)


def test_a_false_marker_costs_no_frame_and_no_more_than_a_frames_time() -> None:
    sent, lost, latest = misled(6, 1)
    assert sent > 100
    assert lost == 0
    assert 0 < latest <= radiorows._LONGEST + radiorows._READ


def test_a_reader_that_skips_what_a_false_marker_claims_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trusting(radio.Reader):
        def _skip(self, count: int) -> None:
            super()._skip(len(self._held) if count == 1 else count)

    monkeypatch.setattr(radiorows, "Reader", Trusting)
    assert misled(4, 1)[1] > 0


def test_the_figures() -> None:
    wrong, lost = figures(1e-3, 60, 2)
    assert wrong.met
    assert lost.met is None
    assert "60 frames" in wrong.detail
    told = found(2, 2)
    assert [one.met for one in told] == [True, True, True, True]


def test_nothing_sent_is_nothing_lost() -> None:
    assert Heard().lost == 0
