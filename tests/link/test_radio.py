"""Radio frames: found in noise, mended, and never wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LinkError
from node.link.radio import MARKER, MAX_PAYLOAD, PARITY, ParityLevel, Reader, Received, _noise, encode


def payloads(found: list[Received | LinkError]) -> list[bytes]:
    return [one.payload for one in found if isinstance(one, Received)]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=600), max_size=3), st.integers(0, 2), st.integers(1, 700))
def test_any_split_gives_the_same(texts: list[bytes], level: int, cut: int) -> None:
    stream = b"".join(encode(text, level, number) for number, text in enumerate(texts))
    reader = Reader()
    found = [one for at in range(0, len(stream), cut) for one in reader.feed(stream[at : at + cut])]
    assert payloads(found) == texts
    assert [one.sequence for one in found if isinstance(one, Received)] == list(range(len(texts)))
    assert reader.skipped == 0


def test_the_whitening_sequence_is_the_published_one() -> None:
    """CCSDS 131.0-B, section 10: the first 40 bits are FF 48 0E C0 9A; the sequence repeats after 255 bits."""
    assert _noise(5) == bytes.fromhex("ff480ec09a")
    bits = "".join(f"{byte:08b}" for byte in _noise(255))
    assert bits[:255] == bits[255:510]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_burst_is_shared_among_the_blocks(level: int) -> None:
    text = random.Random(level).randbytes(900)  # 5 blocks
    coded = bytearray(encode(text, level))
    burst = 5 * (PARITY[level] // 2)
    coded[100 : 100 + burst] = bytes(b ^ 0x5A for b in coded[100 : 100 + burst])
    (got,) = Reader().feed(bytes(coded))
    assert isinstance(got, Received)
    assert (got.payload, got.corrected) == (text, burst)
    coded[100 : 100 + 2 * burst] = bytes(burst * 2)
    assert payloads(Reader().feed(bytes(coded))) == []


def test_marker_and_header_bear_wrong_bits() -> None:
    coded = bytearray(encode(b"hello", 0))
    for place, bit in ((0, 1), (1, 8), (3, 64), (4, 255), (7, 255), (15, 255)):
        coded[place] ^= bit
    assert payloads(Reader().feed(bytes(coded))) == [b"hello"]


def test_a_frame_is_found_between_noise() -> None:
    rng = random.Random(3)
    reader = Reader()
    text = rng.randbytes(300)
    found = reader.feed(rng.randbytes(64 << 10) + encode(text, 1) + rng.randbytes(64 << 10))
    assert payloads(found) == [text]
    assert reader.skipped > 120_000


def test_a_false_marker_costs_no_frame() -> None:
    """Also one with a perfect header, which claims the true frame's bytes as its own."""
    false = encode(b"x" * 500, 1)[:16]
    for junk in (MARKER, MARKER + MARKER, MARKER * 9 + b"zz", false):
        reader = Reader()
        found = reader.feed(junk + encode(b"one", 1) + encode(b"two", 1) + bytes(900))
        assert payloads(found) == [b"one", b"two"]


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 3e-3])
def test_noisy_lines_lose_frames_but_never_text(rate: float) -> None:
    rng = random.Random(5)
    reader, level = Reader(), ParityLevel()
    sent, found = set(), []
    for number in range(150):
        text = number.to_bytes(2, "big") + rng.randbytes(rng.randint(20, 200))
        sent.add(text)
        coded = bytearray(encode(text, level.level, number))
        for place in range(len(coded)):
            if rng.random() < rate * 8:
                coded[place] ^= 1 << rng.randrange(8)
        if rng.random() < 0.02:
            del coded[rng.randrange(len(coded))]
        if rng.random() < 0.02:
            coded.insert(rng.randrange(len(coded)), rng.randrange(256))
        for one in reader.feed(bytes(coded)):
            found.append(one)
            level.observe(one.corrected, one.size) if isinstance(one, Received) else level.lost()
    got = payloads(found)
    assert set(got) <= sent
    assert len(got) == len(set(got)) >= 138


@settings(max_examples=50)
@given(st.binary(max_size=4000))
def test_noise_gives_frames_or_link_errors_and_holds_little(noise: bytes) -> None:
    reader = Reader()
    for one in reader.feed(MARKER + noise):
        assert isinstance(one, Received | LinkError)
    assert len(reader._held) < Reader.LIMIT


def test_a_payload_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="2049"):
        encode(b"x" * (MAX_PAYLOAD + 1), 0)
    assert payloads(Reader().feed(encode(b"x" * MAX_PAYLOAD, 2))) == [b"x" * MAX_PAYLOAD]


def test_parity_rises_at_once_and_falls_slowly() -> None:
    level = ParityLevel()
    for _ in range(ParityLevel.CALM):
        assert level.level == 1
        level.observe(0, 255)
    assert level.level == 0
    level.observe(3, 255)
    assert level.level == 1
    level.lost()
    level.lost()
    assert level.level == 2
    for _ in range(200):
        level.observe(5, 255)
    assert level.level == 2
