"""`tuned.toml`: written whole, believed only where everything is as it was measured."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.layers import load
from node.settings import Settings
from node.tuning import tuned
from node.tuning.fingerprint import machine, sketch, sketch_folder
from node.tuning.tuned import Folder, Gains, Tuned, Weights, as_toml

GAINS = Gains(decode=1.2, prefill=2.4, streams=1.4, kl=0.0055, agreement=0.954)
TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "model.gguf").write_bytes(b"as shipped" * 1000)
    return tmp_path / "model.gguf"


def put(home: Path, own: Path, **changes: Any) -> Tuned:
    """A tuning with a variant whose file is there."""
    (home / "models").mkdir(exist_ok=True)
    path = home / "models" / tuned.variant_name(own, "Q8_0")
    path.write_bytes(b"a variant" * 1000)
    known: dict[str, Any] = {
        "made": "2026-01-01T00:00:00+00:00",
        "model": str(own),
        "source": sketch(own),
        "machine": machine(),
        "weights": tuned.described(path, "Q8_0"),
        "gains": GAINS,
        "engine": {"threads": 1, "kv_type": "q8_0"},
    }
    found = Tuned(**(known | changes))
    tuned.write(found)
    return found


def settings(source: Path, **flags: str) -> Settings:
    named = {key.replace("_", ".", 1): value for key, value in flags.items()}
    return load(environment={}, flags={"model.name": str(source), **named})


def tuned_settings(source: Path, **flags: str) -> Settings:
    named = {key.replace("_", ".", 1): value for key, value in flags.items()}
    return load(environment={}, flags={"model.name": str(source), **named}, tuned=tuned.layer)


def test_what_is_written_is_read(home: Path, source: Path) -> None:
    found = put(home, source)
    assert tuned.read() == found
    assert tuned.of(str(source)) == found
    assert tuned.of("another") is None
    assert not list(home.glob("*.new"))


@given(
    engine=st.dictionaries(st.from_regex(r"\A[a-z_]{1,12}\Z"), st.integers(-5, 5) | TEXT),
    model=TEXT,
    cpu=TEXT,
    features=st.lists(TEXT, max_size=3),
    whole=st.booleans(),
)
def test_any_value_survives_the_document(
    engine: dict[str, str | int], model: str, cpu: str, features: list[str], whole: bool
) -> None:
    weights = Weights(file="a.tuned-q8_0.gguf", form="Q8_0", bytes=5, sha256="a" * 64) if whole else None
    own = msgspec.structs.replace(machine(), cpu=cpu, features=tuple(features))
    found = Tuned(
        made="now", model=model, source="b" * 64, machine=own, engine=engine, weights=weights,
        gains=GAINS if whole else None,
    )  # fmt: skip
    assert msgspec.convert(tomllib.loads(as_toml(found)), Tuned) == found


def test_the_variant_is_served_under_the_model_s_name(home: Path, source: Path) -> None:
    put(home, source)
    found = tuned_settings(source)
    assert found.model.name == str(source)
    assert found.model.variant == str(home / "models" / "model.tuned-q8_0.gguf")
    assert (found.engine.threads, found.engine.kv_type) == (1, "q8_0")


def test_what_the_operator_says_comes_first(home: Path, source: Path) -> None:
    put(home, source)
    found = tuned_settings(source, engine_threads="7")
    assert (found.engine.threads, found.engine.kv_type) == (7, "q8_0")
    assert tuned_settings(source, model_variant="/other.gguf").model.variant == "/other.gguf"


def test_where_both_do_not_go_together_the_tuning_gives_way(
    home: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(home, source)
    found = tuned_settings(source, engine_flash_attention="off")
    assert found == settings(source, engine_flash_attention="off")
    assert "needs flash attention" in str(caplog.records[-1].__dict__["reason"])


def test_nothing_is_used_where_nothing_may_be(home: Path, source: Path) -> None:
    assert tuned_settings(source) == settings(source), "no document"
    put(home, source)
    assert tuned_settings(source, tune_use="false").model.variant == ""
    assert tuned.layer(load(environment={}, flags={"engine.kind": "echo"})) == {}


def test_engine_keys_without_a_variant(home: Path, source: Path) -> None:
    put(home, source, weights=None)
    found = tuned_settings(source)
    assert (found.model.variant, found.engine.threads) == ("", 1)
    assert not list(tuned.variants()), "a file that nothing speaks of is deleted"


@pytest.fixture
def converted(home: Path) -> Path:
    folder = home / "models" / "model-onnx-cpu"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"a graph")
    (folder / "tokenizer.json").write_bytes(b"{}")
    return folder


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="ONNX Runtime is not installed")
def test_the_other_engine_is_served_while_its_folder_is_whole(
    home: Path, source: Path, converted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder(name=converted.name, sketch=sketch_folder(converted))
    put(home, source, weights=None, onnx=folder, engine={"kind": "onnx"})
    found = tuned_settings(source)
    assert (found.engine.kind, found.model.variant) == ("onnx", "")
    assert tuned_settings(source, engine_kind="llama").engine.kind == "llama", "the operator's word"
    (converted / "model.onnx").write_bytes(b"another graph")
    assert tuned_settings(source).engine.kind == "llama"
    assert "is not what it was" in str(caplog.records[-1].__dict__["reason"])
    shutil.rmtree(converted)
    assert tuned_settings(source).engine.kind == "llama"
    tuned.clear()
    assert not tuned.file().exists()


def test_without_onnx_runtime_the_other_engine_is_not_served(
    home: Path, source: Path, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(name=converted.name, sketch=sketch_folder(converted))
    put(home, source, weights=None, onnx=folder, engine={"kind": "onnx"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tuned_settings(source).engine.kind == "llama"


def test_clear_leaves_a_converted_model_alone(home: Path, source: Path, converted: Path) -> None:
    put(home, source, weights=None, onnx=Folder(name=converted.name, sketch="0" * 64), engine={"kind": "onnx"})
    tuned.clear()
    assert converted.is_dir()


def test_a_tuning_that_found_nothing_changes_nothing_and_is_silent(
    home: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(home, source, weights=None, gains=None, engine={})
    with caplog.at_level(logging.INFO):
        assert tuned_settings(source) == settings(source)
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "another"}, "it is for the model another"),
        ({"source": "0" * 64}, "the model's file is another one"),
        ({"machine": {"cores": 512}}, "cores was 512"),
        ({"machine": {"llama_cpp": "0.1"}}, "llama_cpp was 0.1"),
    ],
)
def test_another_model_or_machine_is_not_believed(
    home: Path, source: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    if "machine" in changes:
        changes = {"machine": msgspec.structs.replace(machine(), **changes["machine"])}
    put(home, source, **changes)
    assert tuned_settings(source) == settings(source)
    assert said in str(caplog.records[-1].__dict__["reason"])
    assert "served as shipped" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("harm", ["missing", "shorter", "one bit"])
def test_a_variant_that_is_not_whole_is_not_served(
    home: Path, source: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    put(home, source)
    (path,) = tuned.variants()
    data = path.read_bytes()
    path.unlink() if harm == "missing" else path.write_bytes(data[:-1] if harm == "shorter" else b"A" + data[1:])
    assert tuned_settings(source) == settings(source)
    assert str(path) in str(caplog.records[-1].__dict__["reason"])


def test_a_model_that_is_gone_is_left_to_whoever_opens_it(home: Path, source: Path) -> None:
    put(home, source)
    source.unlink()
    assert tuned_settings(source).model.variant == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[made",
        "made = 1",
        "\x00",
        "x = 1\n",
        "#" * (65 << 10),
    ],
)
def test_a_broken_document_is_none(home: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    (home / "tuned.toml").write_text(text)
    assert tuned.read() is None
    assert caplog.records[-1].getMessage() == "tuned.toml is ignored"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('file = "model.tuned-q8_0.gguf"', 'file = "../../etc/passwd.gguf"'),
        ('kv_type = "q8_0"', 'kv_type = "q2"'),
        ("threads = 1", 'nonsense = "1"'),
    ],
)
def test_a_document_that_was_meddled_with_is_none(home: Path, source: Path, old: str, new: str) -> None:
    put(home, source)
    text = (home / "tuned.toml").read_text()
    assert old in text
    (home / "tuned.toml").write_text(text.replace(old, new))
    assert tuned.read() is None


def test_bytes_that_are_no_text_and_a_folder_in_its_place_are_none(home: Path) -> None:
    (home / "tuned.toml").write_bytes(b"\xff\xfe")
    assert tuned.read() is None
    (home / "tuned.toml").unlink()
    (home / "tuned.toml").mkdir()
    assert tuned.read() is None


def test_only_the_winner_s_file_stays(home: Path, source: Path) -> None:
    put(home, source)
    old = home / "models" / "other.tuned-q4_0.gguf"
    old.write_bytes(b"old")
    own = home / "models" / "own.gguf"
    own.write_bytes(b"a model")
    put(home, source)
    assert [path.name for path in tuned.variants()] == ["model.tuned-q8_0.gguf"]
    assert own.exists()


def test_clear_takes_all_of_it_back_and_says_how_much(home: Path, source: Path) -> None:
    assert tuned.clear() == 0
    put(home, source)
    assert tuned.clear() == 9000
    assert tuned.read() is None
    assert not list(tuned.variants())
    assert source.exists()


def test_clear_before_anything_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "none"))
    assert tuned.clear() == 0


def test_a_disk_that_is_full_leaves_the_old_document(home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = put(home, source)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        put(home, source, model="next")
    monkeypatch.undo()
    monkeypatch.setenv("OUTPOST_HOME", str(home))
    assert tuned.read() == found
    assert not list(home.glob("*.new"))
