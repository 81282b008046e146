"""One tuning from settings to `tuned.toml`, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import ModelFileError, NodeError, SettingsError
from node.layers import load
from node.machine.memory import Memory
from node.models import gguf
from node.settings import Settings
from node.tuning import job, reading, tuned
from node.tuning.job import FULL, QUICK, Pace, prepare
from node.tuning.lab import alone
from node.tuning.tune import Report

FAST = Pace(seconds=0.001, plans=((1, 1),), most_s=60)


def settings(model: Path, **flags: object) -> Settings:
    named = {key.replace("_", ".", 1): str(value) for key, value in flags.items()}
    own = {"model.name": str(model), "engine.slots": "2", "engine.threads": "1"}
    return load(environment={}, flags={**own, **named})


@pytest.fixture
def short_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts.txt").write_text("one text of some words\n----\nand another text, which is longer")
    monkeypatch.setattr(reading, "_TEXTS", tmp_path / "texts.txt")


def run(known: Settings, *, keep: bool, chosen: frozenset[str] = frozenset({"engine.threads"})) -> Report:
    with alone():
        return job.run(prepare(known, chosen), FAST, lambda *what: None, keep=keep)


def test_the_space_is_what_model_and_machine_allow(home: Path, tiny: Path) -> None:
    prepared = prepare(settings(tiny), frozenset({"engine.threads", "server.port"}))
    assert prepared.space.shipped == "F32"
    assert prepared.space.parameters == gguf.read(tiny).parameters
    assert prepared.space.bytes == tiny.stat().st_size
    assert prepared.space.fixed == {"threads"}
    assert prepared.source == tiny
    assert prepared.space.cores >= prepared.space.threads >= 1


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        ({"engine_kind": "echo"}, SettingsError, "nothing to tune"),
        ({"model_variant": "/x.gguf"}, SettingsError, "set by hand"),
        ({"model_name": "/none.gguf"}, ModelFileError, "no file"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    home: Path, tiny: Path, flags: dict[str, object], error: type[NodeError], said: str
) -> None:
    with pytest.raises(error, match=said):
        prepare(settings(tiny, **flags), frozenset())


def test_a_damaged_model_is_refused_before_anything_is_made(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"bad\.gguf"):
        prepare(settings(tmp_path / "bad.gguf"), frozenset())


def test_what_memory_leaves_for_weights_is_half_of_what_the_rest_leaves(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "memory", lambda: Memory(8 << 30, 4 << 30, None))
    room = prepare(settings(tiny), frozenset()).space.room
    larger = prepare(settings(tiny, engine_kv_tokens=1 << 20), frozenset()).space.room
    assert room is not None
    assert larger is not None
    assert larger < room < 2 << 30


def test_a_model_larger_than_memory_is_refused_with_the_numbers(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "memory", lambda: Memory(4_000_000, 3_000_000, None))
    with pytest.raises(ModelFileError, match=r"only 0 MB of memory are free for its 2 MB of weights"):
        prepare(settings(tiny), frozenset())
    monkeypatch.setattr(job, "memory", lambda: Memory(None, None, None))
    assert prepare(settings(tiny), frozenset()).space.room is None


@pytest.mark.usefixtures("short_texts")
def test_without_keep_nothing_stays(home: Path, tiny: Path) -> None:
    report = run(settings(tiny, tune_max_kl=10, tune_min_agreement=0), keep=False)
    assert len(report.rows) > 6
    assert {row.verdict for row in report.rows} <= {"shipped", "best", "better", "slower", "refused"}
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("short_texts")
def test_what_wins_is_kept_and_served(home: Path, tiny: Path) -> None:
    """Which one wins is the machine's word; that the document and the file say the same is ours."""
    known = settings(tiny, tune_max_kl=10, tune_min_agreement=0, tune_min_gain=1)
    report = run(known, keep=True)
    found = tuned.of(str(tiny))
    assert found is not None
    served = load(
        environment={}, flags={"model.name": str(tiny), "engine.slots": "2", "engine.threads": "1"}, tuned=tuned.layer
    )
    if report.winner is None:
        assert (found.weights, found.engine, served.model.variant) == (None, {}, "")
        return
    form = report.winner.variant.form
    assert found.engine == report.winner.variant.differences(known.engine)
    assert "threads" not in found.engine
    assert found.gains is not None
    assert (found.weights.form if found.weights else "") == form
    if form:
        assert gguf.read(Path(served.model.variant)).parameters == gguf.read(tiny).parameters
    assert not list(home.glob("tuning*"))


@pytest.mark.usefixtures("short_texts")
def test_what_finds_nothing_is_written_down_as_such_and_takes_an_older_one_back(home: Path, tiny: Path) -> None:
    from tests.tuning.test_tuned import put

    put(home, tiny)
    report = run(settings(tiny, tune_min_gain=10), keep=True)
    assert report.winner is None
    found = tuned.of(str(tiny))
    assert found is not None
    assert (found.weights, found.gains, found.engine) == (None, None, {})
    assert not list(tuned.variants())
    assert tuned.difference(found, str(tiny)) == ""


def test_quick_is_quicker() -> None:
    assert QUICK.most_s < 100 < FULL.most_s
    assert QUICK.seconds < FULL.seconds
    assert all(plans == tuple(sorted(plans, reverse=True)) for plans in (QUICK.plans, FULL.plans)), "best first"
    assert QUICK.plans[0][1] >= 3, "a median of fewer is none"


@pytest.mark.onnx
def test_a_converted_model_is_one_of_the_variants(home: Path, weights: Path, onnx_folder: Path) -> None:
    (home / "models").mkdir()
    (home / "models" / weights.name).symlink_to(weights)
    (home / "models" / onnx_folder.name).symlink_to(onnx_folder)
    known = load(environment={})
    assert prepare(known, frozenset()).onnx == home / "models" / onnx_folder.name
    assert prepare(known, frozenset()).space.onnx_bytes > 1_000_000
    assert prepare(known, frozenset({"engine.kind"})).onnx is None, "the operator has chosen the engine"
    quantized = load(environment={}, flags={"engine.kv_type": "q8_0"})
    assert prepare(quantized, frozenset()).onnx is None, "its cache has a format of its own"


def test_a_model_of_one_s_own_has_no_folder(home: Path, tiny: Path) -> None:
    assert prepare(settings(tiny), frozenset()).onnx is None
