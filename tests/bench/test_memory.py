"""The benchmark of memory: what it does to a node, and how it judges."""

from __future__ import annotations

import pytest

from node.bench.memory import FULL, QUICK, Row, Variant, figures
from node.fleet.footprint import MIB, Footprint, Part
from node.layers import load
from node.settings import Engine, Settings

COMPUTED = Footprint((Part("weights", 90 * MIB), Part("program", 10 * MIB)))


def test_a_variant_is_settings() -> None:
    variant = Variant(2048, "q8_0", slots=3, threads=1, warm_mib=8)
    assert variant.changes == [
        "engine.context=2048",
        "engine.kv_tokens=2048",
        "engine.kv_type=q8_0",
        "engine.slots=3",
        "engine.threads=1",
        "prewarm.enabled=True",
        f"prewarm.memory_bytes={8 * MIB}",
        f"prewarm.history_bytes={MIB}",
        "prewarm.disk_bytes=0",
    ]
    flags = dict(change.split("=") for change in variant.changes)
    assert variant.of(Settings()) == load(environment={}, flags=flags)
    assert variant.name == "context 2,048, q8_0, 3 slots, 1 thread, 8 MiB of warm prefixes"
    assert Variant(1024).of(Settings(engine=Engine(threads=7, gpu_layers=5))).engine.threads == 7


def test_variants_are_different() -> None:
    assert len({variant.name for variant in FULL}) == len(FULL) >= 5
    assert {variant.kv_type for variant in FULL} > {"f16"}
    assert len(QUICK) < len(FULL)


@pytest.mark.parametrize(
    ("taken", "off", "met"), [(100, 0, True), (110, 9.1, True), (92, 8.7, True), (120, 16.7, False)]
)
def test_the_judgement(taken: int, off: float, met: bool) -> None:
    (figure,) = figures([Row(Variant(1024), COMPUTED, taken * MIB)])
    assert figure.value == pytest.approx(off, abs=0.05)
    assert figure.met is met
    assert figure.detail == f"computed 100 (weights 90, program 10), took {taken} MiB"
