"""The estimate: its parts by hand for the default model, and how it grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.fleet import footprint as module
from node.fleet.footprint import Footprint, Gpu, _buffers, packed_types
from node.models.gguf import Summary
from node.models.shape import Shape
from node.settings import Engine, Prewarm, Settings
from tests.fleet.support import MIB, SMALL

AVX2 = ("avx", "avx2", "fma")
QWEN = replace(SMALL, context_length=32768, vocabulary=151936, shape=Shape(24, 14, 896, 4864, 6144))
LLAMA_1B = replace(SMALL, context_length=131072, vocabulary=128256, shape=Shape(16, 32, 2048, 8192, 16384))


def footprint(
    model: Summary, engine: Engine, threads: int, features: tuple[str, ...], gpu: Gpu = "none", warm: int = 0
) -> Footprint:
    prewarm = Prewarm(enabled=warm > 0, memory_bytes=warm * MIB, history_bytes=MIB)
    return module.footprint(model, Settings(engine=engine, prewarm=prewarm), threads, features, gpu)


def parts(found: Footprint) -> dict[str, float]:
    return {part.name: round(part.bytes / MIB, 1) for part in found.parts}


def test_the_default_model_by_hand() -> None:
    found = parts(footprint(SMALL, Engine(slots=8), 1, AVX2))
    assert found["weights"] == 92.1
    assert "packed copy" not in found  # there is no faster layout for Q4_1
    assert found["KV cache"] == 180.0  # 8192 cells x 11520 numbers x 2 bytes, as llama.cpp says at its start
    # 18 sequences: a layer 522 x (3 x 1536 + 4 x 576) x 4, mask 8192 x 522 x 2, output 72 x (49152 + 576) x 4, products
    assert found["buffers"] == pytest.approx(13.8 + 8.2 + 13.7 + 0.8, abs=0.2)
    assert found.keys() == {"weights", "KV cache", "buffers", "program"}


# What llama.cpp says at its start (CPU compute buffer size), in MiB.
@pytest.mark.parametrize(
    ("model", "engine", "working"),
    [
        (SMALL, Engine(), 21.93),
        (SMALL, Engine(flash_attention="off"), 169.63),
        (SMALL, Engine(flash_attention="off", context=2048), 47.29),
        (QWEN, Engine(context=4096, batch=256), 42.90),  # the output is larger than a layer
        (QWEN, Engine(context=4096, batch=2048, slots=32), 162.99),
        (QWEN, Engine(context=4096, flash_attention="off"), 131.78),
        (LLAMA_1B, Engine(context=4096, slots=2), 68.54),
    ],
)
def test_buffers_are_what_llama_cpp_reserves(model: Summary, engine: Engine, working: float) -> None:
    context = min(engine.context or model.context_length, model.context_length)
    outputs = max(engine.slots + 64, 2 * engine.slots + 2)
    ours = _buffers(model, engine, context, 2 * engine.slots + 2, engine.slots + 64)
    output = outputs * (model.vocabulary + model.shape.embedding) * 4
    products = engine.batch * model.shape.feed_forward * 9 // 8
    assert (ours - output - products) / MIB == pytest.approx(working, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "cache"),
    [
        (Engine(context=2048), 45.0),
        (Engine(context=100_000), 180.0),  # no more than the model was trained for
        (Engine(context=2048, kv_tokens=4000), 90.0),  # cells come by 256
        (Engine(context=4096, kv_type="q8_0"), 47.8),
    ],
)
def test_the_cache(engine: Engine, cache: float) -> None:
    assert parts(footprint(SMALL, engine, 1, AVX2))["KV cache"] == cache


@pytest.mark.parametrize(
    ("features", "matrices", "packed"),
    [
        (AVX2, {"Q4_0": 50 * MIB, "Q8_0": 10 * MIB}, 50.0),
        (AVX2, {"Q4_K": 50 * MIB, "Q6_K": 10 * MIB}, 50.0),
        (("neon", "dotprod"), {"Q4_0": 50 * MIB, "Q8_0": 10 * MIB}, 60.0),
        (("neon",), {"Q4_0": 50 * MIB}, 0.0),
        ((*AVX2, "amx"), SMALL.shape.matrices, 95.3),  # as llama.cpp says: AMX model buffer size = 95.34 MiB
        ((), {"Q4_0": 50 * MIB}, 0.0),
    ],
)
def test_the_second_copy(features: tuple[str, ...], matrices: dict[str, int], packed: float) -> None:
    model = replace(SMALL, shape=replace(SMALL.shape, matrices=matrices))
    assert parts(footprint(model, Engine(), 1, features)).get("packed copy", 0.0) == packed


def test_types_of_several_features_are_joined() -> None:
    assert packed_types(("avx2", "avx512f")) >= {"Q4_0", "Q2_K"}
    assert packed_types(()) == frozenset()


def test_a_long_prompt_costs_only_where_it_is_read_aside() -> None:
    one, two = (footprint(SMALL, Engine(context=4096), threads, AVX2) for threads in (1, 2))
    assert "a long prompt" not in parts(one)
    assert two.total - one.total > 3 * 90 * MIB
    more_cells = footprint(SMALL, Engine(context=4096, kv_tokens=8192), 2, AVX2)
    assert parts(more_cells)["a long prompt"] == parts(two)["a long prompt"]  # a prompt is no longer than a context


def test_warm_prefixes_count_up_to_their_limit() -> None:
    assert parts(footprint(SMALL, Engine(), 1, AVX2, warm=64))["warm prefixes"] == 65.0
    assert "warm prefixes" not in parts(footprint(SMALL, Engine(), 1, AVX2))


def test_a_gpu_with_memory_of_its_own_takes_its_share() -> None:
    whole = footprint(SMALL, Engine(), 4, AVX2, "own")
    assert {part.name for part in whole.parts} == {"buffers", "program"}
    assert {part.name: round(part.bytes / MIB) for part in whole.gpu}["KV cache"] == 180
    half = footprint(SMALL, Engine(gpu_layers=15), 4, AVX2, "own")
    assert parts(half)["weights"] == pytest.approx(92.1 * 16 / 31, abs=0.1)
    assert half.gpu_total + half.total > whole.total


def test_a_gpu_that_shares_memory_moves_nothing() -> None:
    shared = footprint(SMALL, Engine(), 4, AVX2, "shared")
    assert shared.gpu == ()
    assert {"weights", "KV cache"} <= parts(shared).keys()
    assert "a long prompt" not in parts(shared)


@given(
    context=st.integers(1, 8192),
    slots=st.integers(1, 95),
    kv_type=st.sampled_from(["f16", "q8_0"]),
    layers=st.integers(1, 99),
)
def test_more_is_never_less(context: int, slots: int, kv_type: str, layers: int) -> None:
    engine = Engine(context=context, slots=slots, kv_type=kv_type)  # type: ignore[arg-type]
    model = replace(SMALL, shape=Shape(layers, 8, 64, 128, 16 * layers, 1000))
    small = footprint(model, engine, 2, AVX2).total
    assert small <= footprint(model, replace_(engine, context=context + 300), 2, AVX2).total
    assert small <= footprint(model, replace_(engine, slots=slots + 1), 2, AVX2).total + 64 * 1024
    bigger = replace(model, vocabulary=model.vocabulary + 1000)
    assert small < footprint(bigger, engine, 2, AVX2).total


def replace_(engine: Engine, **changes: int) -> Engine:
    return Engine(**{name: getattr(engine, name) for name in engine.__struct_fields__} | changes)


def test_a_header_that_says_nothing_gives_what_is_sure() -> None:
    empty = replace(SMALL, context_length=0, vocabulary=0, shape=Shape())
    assert set(parts(footprint(empty, Engine(), 2, AVX2))) == {"program"}
