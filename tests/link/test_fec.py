"""Forward error correction: whatever may be lost is repaired, whatever is wrong is not believed."""

from __future__ import annotations

import random

import pytest
import reedsolo
from hypothesis import given, settings
from hypothesis import strategies as st

from node.link.fec import (
    MAX_SHARD,
    WINDOW,
    Symbol,
    Unrepairable,
    coefficient,
    correct_block,
    encode_block,
    inverse,
    multiply,
    recover,
    repair_symbol,
    shard_size,
)

chunks_of = st.lists(st.binary(max_size=40), min_size=1, max_size=WINDOW)


def test_the_field_is_the_one_that_reedsolo_uses() -> None:
    reedsolo.init_tables(0x11D)
    for a in range(256):
        for b in (0, 1, 2, 29, 128, 255):
            assert multiply(a, b) == reedsolo.gf_mul(a, b)
        if a:
            assert multiply(a, inverse(a)) == 1


def test_coefficients_are_those_of_the_formula_for_any_number() -> None:
    for symbol in (0, 5, 127, 128, 255):
        for position in (0, 63, 127, 128, 70_000):
            c = coefficient(symbol, position)
            assert multiply(c, (128 + symbol % 128) ^ (position % 128)) == 1


@settings(max_examples=200)
@given(chunks_of, st.integers(0, 2**32 - WINDOW), st.data())
def test_any_r_symbols_repair_any_r_chunks_of_a_window(chunks: list[bytes], first: int, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, len(chunks) - 1), max_size=min(6, len(chunks))))
    numbers = data.draw(st.lists(st.integers(0, 127), min_size=len(lost), max_size=len(lost), unique=True))
    symbols = [Symbol(n, first, len(chunks), repair_symbol(chunks, first, n)) for n in numbers]
    known = {first + i: chunk for i, chunk in enumerate(chunks) if i not in lost}
    assert recover(symbols, known) == {first + i: chunks[i] for i in lost}


@settings(max_examples=100)
@given(chunks_of, st.data())
def test_fewer_symbols_than_losses_invent_nothing(chunks: list[bytes], data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, len(chunks) - 1), min_size=1, max_size=6))
    symbols = [Symbol(n, 0, len(chunks), repair_symbol(chunks, 0, n)) for n in range(len(lost) - 1)]
    known = {i: chunk for i, chunk in enumerate(chunks) if i not in lost}
    assert recover(symbols, known) == {}


def test_symbols_over_sliding_windows_are_solved_together() -> None:
    rng = random.Random(7)
    chunks = [rng.randbytes(rng.randint(0, 20)) for _ in range(40)]
    unsolved = 0
    for _ in range(300):
        lost = set(rng.sample(range(5, 35), 4))
        known = {i: chunk for i, chunk in enumerate(chunks) if i not in lost}
        symbols = []
        for number, end in enumerate(range(36, 40)):
            first = rng.randint(0, 5)
            window = chunks[first:end]
            symbols.append(Symbol(number, first, len(window), repair_symbol(window, first, number)))
        found = recover(symbols, known)
        assert all(chunks[i] == chunk for i, chunk in found.items())
        unsolved += len(found) < 4
    assert unsolved <= 5


def test_one_that_can_be_had_is_given_though_others_cannot() -> None:
    chunks = [b"a", b"bb", b"ccc", b"dddd"]
    symbols = [Symbol(0, 0, 2, repair_symbol(chunks[:2], 0, 0)), Symbol(1, 2, 2, repair_symbol(chunks[2:], 2, 1))]
    assert recover(symbols, {0: b"a"}) == {1: b"bb"}


def test_a_symbol_that_contradicts_what_is_known_gives_nothing() -> None:
    symbol = Symbol(3, 0, 2, repair_symbol([b"a", b"b"], 0, 3))
    assert recover([symbol], {0: b"much longer than the symbol"}) == {}
    assert recover([Symbol(3, 0, 2, b"\xff" * len(symbol.data))], {0: b"a"}) == {}
    assert recover([Symbol(3, 0, 2, b"")], {0: b"a"}) == {}


def test_an_outage_is_not_solved_for() -> None:
    chunks = [bytes([i]) for i in range(60)]
    symbols = [Symbol(i, 0, 60, repair_symbol(chunks, 0, i)) for i in range(40)]
    assert recover(symbols, {i: chunks[i] for i in range(20)}) == {}


def test_the_longest_chunk_fits_a_shard() -> None:
    assert shard_size([b"", b"x" * (MAX_SHARD - 2)]) == MAX_SHARD


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=223), st.sampled_from([8, 16, 32]), st.randoms(use_true_random=False))
def test_a_block_survives_half_its_parity_in_errors(data: bytes, parity: int, rng: random.Random) -> None:
    block = bytearray(encode_block(data, parity))
    wrong = rng.sample(range(len(block)), min(parity // 2, len(block)))
    for place in wrong:
        block[place] ^= rng.randint(1, 255)
    assert correct_block(bytes(block), parity) == (data, len(wrong))


@settings(max_examples=60)
@given(st.binary(min_size=40, max_size=200), st.sampled_from([8, 16, 32]), st.randoms(use_true_random=False))
def test_a_block_survives_all_its_parity_in_erasures(data: bytes, parity: int, rng: random.Random) -> None:
    block = bytearray(encode_block(data, parity))
    lost = rng.sample(range(len(block)), parity)
    for place in lost:
        block[place] = rng.randint(0, 255)
    assert correct_block(bytes(block), parity, lost)[0] == data


def test_too_many_errors_are_one_exception_or_a_wrong_block_but_nothing_else() -> None:
    rng = random.Random(1)
    refused = 0
    for _ in range(200):
        block = rng.randbytes(rng.randint(1, 255))
        try:
            correct_block(block, rng.choice([8, 16, 32]))
        except Unrepairable:
            refused += 1
    assert refused > 150


def test_the_published_fx25_codewords_check() -> None:
    """FX.25's RS(255, 239) and CCSDS' RS(255, 223): known-answer codewords from their generator polynomials."""
    # FX.25 (Stensat 2006): field 0x11D, first root alpha^1. g(x) of degree 2 over that field is x^2 + 6x + 8.
    reedsolo.init_tables(0x11D)
    assert list(reedsolo.rs_generator_poly(2, fcr=1)) == [1, 6, 8]
    # ISO/IEC 18004 (QR code), annex A: the generator polynomial of 7 codewords, in powers of alpha.
    powers = [0, 87, 229, 146, 149, 238, 102, 21]
    assert [reedsolo.gf_log[value] for value in reedsolo.rs_generator_poly(7)] == powers
    # ISO/IEC 18004, annex I: version 1-M, "01234567".
    data = bytes([16, 32, 12, 86, 97, 128, 236, 17, 236, 17, 236, 17, 236, 17, 236, 17])
    assert list(encode_block(data, 10)[16:]) == [165, 36, 212, 193, 237, 54, 199, 135, 44, 85]


def test_an_empty_block_is_unrepairable() -> None:
    with pytest.raises(Unrepairable):
        correct_block(b"", 8)
