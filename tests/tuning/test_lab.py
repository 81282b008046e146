"""The real bench, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from node.engine.base import open_engine
from node.errors import ModelFileError, OperatorError
from node.models import gguf
from node.tuning import lab as labs
from node.tuning import tuned
from node.tuning.lab import Lab, alone, workshop
from node.tuning.variants import AS_SHIPPED, ONNX, Variant
from tests.tuning.conftest import SMALL

SHIPPED = Variant(AS_SHIPPED, SMALL)


@pytest.fixture
def lab(home: Path, tiny: Path) -> Lab:
    return Lab(SMALL, tiny, gguf.read(tiny).parameters, 1, seconds=0.001)


def test_a_form_is_made_once_and_dropped(lab: Lab, tiny: Path) -> None:
    size = lab.make("Q8_0")
    made = lab.path("Q8_0").stat()
    assert size == made.st_size
    assert lab.make("Q8_0") == size
    assert lab.path("Q8_0").stat().st_ino == made.st_ino
    lab.drop("Q8_0")
    lab.drop("Q8_0")
    lab.drop(AS_SHIPPED)
    assert list(workshop().iterdir()) == []
    assert tiny.exists(), "the file as shipped is nobody's to delete"


def test_speeds_are_measured_with_the_same_sizes(lab: Lab) -> None:
    lab.make("Q4_0")
    one, other = lab.speed(SHIPPED), lab.speed(Variant("Q4_0", replace(SMALL, ubatch=64)))
    for speed in (one, other):
        assert min(speed.decode, speed.prefill, speed.streams) > 0
    assert lab._sizes is not None
    assert lab._sizes.streams == SMALL.slots


def test_guesses_are_not_measured(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(labs, "open_engine", lambda engine, *rest: seen.append(engine) or open_engine(engine, *rest))
    lab.speed(SHIPPED)
    assert SHIPPED.engine.drafts == "history"
    assert seen == [replace(SHIPPED.engine, drafts="off")]


def test_quality_is_judged_against_the_file_as_shipped(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from node.tuning import reading

    monkeypatch.setattr(reading, "_TEXTS", tiny.with_name("texts.txt"))
    tiny.with_name("texts.txt").write_text("one text of some words\n----\nand another text")
    lab = Lab(SMALL, tiny, gguf.read(tiny).parameters, 1, seconds=0.001)
    assert lab.quality(SHIPPED).agreement == 1
    lab.make("Q4_0")
    assert lab.quality(Variant("Q4_0", SMALL)).kl > lab.quality(SHIPPED).kl


def test_a_file_that_cannot_be_loaded_is_an_error_with_a_reason(lab: Lab) -> None:
    lab.make("Q8_0")
    lab.path("Q8_0").write_bytes(b"no model")
    with pytest.raises(ModelFileError, match="cannot load"):
        lab.speed(Variant("Q8_0", SMALL))


def test_the_winner_is_kept_where_nothing_is_cleared(home: Path, lab: Lab) -> None:
    with alone():
        lab.make("Q8_0")
        lab.keep("Q8_0", home / "models" / "x.tuned-q8_0.gguf")
    assert gguf.read(home / "models" / "x.tuned-q8_0.gguf").quantization == "Q8_0"
    assert not workshop().exists()


def test_only_one_run_at_a_time(home: Path) -> None:
    with alone(), pytest.raises(OperatorError, match="Another run"), alone():
        pass
    with alone():
        pass


def test_a_run_clears_what_a_killed_one_left(home: Path) -> None:
    workshop().mkdir()
    (workshop() / "Q8_0.gguf.part").write_bytes(b"half")
    (home / "models").mkdir()
    orphan = home / "models" / "x.tuned-q8_0.gguf"
    orphan.write_bytes(b"nobody speaks of it")
    (home / "tuning.lock").write_bytes(b"")
    with alone():
        assert not workshop().exists()
        assert not orphan.exists()
    assert not (home / "tuning.lock").exists()


def test_a_run_that_fails_clears_too(home: Path, lab: Lab) -> None:
    def failing() -> None:
        with alone():
            lab.make("Q4_0")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert not workshop().exists()


def test_a_run_leaves_the_variant_that_is_in_use(home: Path, tiny: Path) -> None:
    from tests.tuning.test_tuned import put

    put(home, tiny)
    with alone():
        assert len(list(tuned.variants())) == 1
    assert labs.workshop() == home / "tuning"


def test_the_other_engine_s_folder_is_used_as_it_is(home: Path, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    (folder / "a").write_bytes(b"123")
    lab = Lab(SMALL, tiny, gguf.read(tiny).parameters, 1, seconds=0.001, onnx=folder)
    assert lab.make(ONNX) == 3
    lab.drop(ONNX)
    assert lab.path(ONNX) == folder
    assert (folder / "a").exists()
