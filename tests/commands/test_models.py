from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import pytest

from node.commands import models
from node.errors import ModelFileError, NodeError, SettingsError
from node.models import catalog, weights
from node.tuning import tuned
from tests.tuning.test_tuned import put

CONTENT = b"weights" * 100_000


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose catalogue has one small model of the user's own."""
    (tmp_path / "source").write_bytes(CONTENT)
    (tmp_path / "catalog.toml").write_text(f"""
[[models]]
id = "tiny"
description = "seven letters, over and over, for nobody in particular but long enough for a second line"
licence = "My licence"
licence_url = "https://licence.example/"
file = "tiny.gguf"
size = {len(CONTENT)}
sha256 = "{hashlib.sha256(CONTENT).hexdigest()}"
parts = ["{(tmp_path / "source").as_uri()}"]
""")
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def outpost(*words: str) -> int:
    """Run `outpost models …` as the command line does."""
    parser = argparse.ArgumentParser(prog="outpost")
    models.register(parser.add_subparsers(dest="verb"))
    args = parser.parse_args(["models", *words])
    return int(args.run(args))


@pytest.mark.parametrize("words", [(), ("list",)])
def test_list_is_a_table_for_people(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert outpost(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "  MODEL                      SIZE  LICENCE      STATE",
        "* smollm2-135m-instruct   98.4 MB  Apache-2.0   not installed",
        "    Small and fast chat model for English (Q4_1); made for small computers",
        "  gemma-3-270m           253.1 MB  Gemma terms  not installed",
        "    Base model (Q4_K_M): continues text, is not trained to chat",
    ]
    assert max(map(len, lines[:8])) <= 80
    assert "* the default" in lines


def test_list_shows_what_is_here_and_what_is_half_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "models").mkdir()
    (home / "models" / "tiny.gguf").write_bytes(CONTENT)
    with (home / "models" / "gemma-3-270m-q4_k_m.gguf.part").open("wb") as file:
        file.truncate(253_113_024 // 2)
    outpost("list")
    shown = capsys.readouterr().out
    assert "700.0 kB  My licence   installed" in shown
    assert "Gemma terms  50 % fetched" in shown


def test_list_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("list", "--json") == 0
    found = {model["id"]: model for model in json.loads(capsys.readouterr().out)}
    assert found["smollm2-135m-instruct"]["default"] is True
    assert found["gemma-3-270m"]["licence_url"] == "https://ai.google.dev/gemma/terms"
    assert found["tiny"] == {
        "id": "tiny",
        "description": found["tiny"]["description"],
        "licence": "My licence",
        "licence_url": "https://licence.example/",
        "size": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "default": False,
        "installed": False,
        "path": None,
        "tuned_path": None,
    }


def test_pull_verify_remove(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("pull", "tiny") == 0
    said = capsys.readouterr()
    assert said.out == f"tiny is installed and checked: {home / 'models' / 'tiny.gguf'}\n"
    assert "tiny, 700.0 kB, licence: My licence (https://licence.example/)" in said.err
    assert "fetching tiny: 700.0 kB in " in said.err
    assert outpost("pull", "tiny") == 0
    assert "is here already" in capsys.readouterr().out
    assert outpost("verify") == 0
    assert capsys.readouterr().out == "tiny: whole\n"
    assert outpost("remove", "tiny") == 0
    assert capsys.readouterr().out == "tiny is removed; 700.0 kB are free again.\n"
    assert list((home / "models").iterdir()) == []


def test_pull_without_a_name_takes_the_default(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    default = catalog.load().default
    (home / "models").mkdir()
    with (home / "models" / default.file).open("wb") as file:
        file.truncate(default.size)
    assert outpost("pull") == 0
    assert default.id in capsys.readouterr().out


def test_verify_tells_damage_from_health(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outpost("pull", "tiny")
    (home / "models" / "tiny.gguf").write_bytes(b"W" + CONTENT[1:])
    capsys.readouterr()
    assert outpost("verify", "tiny") == 1
    assert "outpost models remove tiny && outpost models pull tiny" in capsys.readouterr().out
    assert outpost("verify", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["id"], found["ok"]) == ("tiny", False)
    assert hashlib.sha256(CONTENT).hexdigest() in found["problem"]


def test_verify_without_any_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("verify") == 0
    assert "outpost models pull" in capsys.readouterr().err
    assert outpost("verify", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("words", "kind", "complaint"),
    [
        (("pull", "smollm"), ModelFileError, "Did you mean smollm2-135m-instruct"),
        (("verify", "nobody"), ModelFileError, "There is no model `nobody`"),
        (("remove", "tiny"), ModelFileError, "is not installed"),
    ],
)
def test_what_cannot_be_done_is_an_error(words: tuple[str, ...], kind: type[NodeError], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        outpost(*words)


def test_a_broken_catalogue_is_used_wrongly(home: Path) -> None:
    (home / "catalog.toml").write_text("models = 1")
    with pytest.raises(SettingsError, match=r"catalog\.toml: Expected `array`") as caught:
        outpost("list")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("words", [("remove",), ("fetch", "tiny"), ("list", "--what")])
def test_what_nobody_understands_is_bad_use(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        outpost(*words)
    assert "usage: outpost" in capsys.readouterr().err


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        outpost("--help")
    shown = capsys.readouterr().out
    assert "outpost models pull gemma-3-270m" in shown
    assert "model.name" in shown


def test_every_stage_has_its_own_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with models.bars() as report:
        report("fetching", 0, 100)
        report("fetching", 100, 100)
        report("unpacking", 50, 50)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fetching: 100 B in ")
    assert second.startswith("unpacking: 50 B in ")


def test_a_narrow_terminal_still_gets_a_table() -> None:
    entries = catalog.load().entries
    shown = models.table(entries, ["installed"] * len(entries), 20)
    assert shown.count("installed") == len(entries)


def test_the_data_directory_is_the_one_of_the_test(home: Path) -> None:
    assert weights.folder() == home / "models"


def test_a_tuned_variant_is_shown_verified_and_goes_with_its_model(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outpost("pull", "tiny")
    put(home, home / "models" / "tiny.gguf", model="tiny")
    (variant,) = tuned.variants()
    capsys.readouterr()
    outpost("list")
    assert f"Tuned: tiny is served as Q8_0, 9.0 kB: {variant}" in capsys.readouterr().out
    outpost("list", "--json")
    found = {model["id"]: model for model in json.loads(capsys.readouterr().out)}
    assert found["tiny"]["tuned_path"] == str(variant)
    for words in (("verify",), ("verify", "tiny")):
        assert outpost(*words) == 0
        assert capsys.readouterr().out == "tiny: whole\ntiny as Q8_0: whole\n"
    variant.write_bytes(b"A" + variant.read_bytes()[1:])
    assert outpost("verify") == 1
    assert "outpost tune --apply" in capsys.readouterr().out
    assert outpost("remove", "tiny") == 0
    assert capsys.readouterr().out == "tiny is removed; 709.0 kB are free again.\n"
    assert not variant.exists()
    assert tuned.read() is None


def test_another_model_s_variant_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outpost("pull", "tiny")
    put(home, home / "models" / "tiny.gguf", model="gemma-3-270m")
    assert outpost("verify", "tiny") == 0
    outpost("remove", "tiny")
    assert len(list(tuned.variants())) == 1
    assert "Tuned: gemma-3-270m" not in capsys.readouterr().out


def test_convert_makes_a_folder_and_says_how_to_serve_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(models.convert, "convert", lambda *what: asked.append(what))
    (home / "models").mkdir()
    (home / "models" / "tiny.gguf").write_bytes(CONTENT)
    assert outpost("convert", "tiny", "--for", "cpu") == 0
    ((source, folder, target, _),) = asked
    assert (source.name, folder.name, target) == ("tiny.gguf", "tiny-onnx-cpu", "cpu")
    assert "outpost serve --engine onnx" in capsys.readouterr().out


def test_convert_needs_the_weights() -> None:
    with pytest.raises(ModelFileError, match="not installed"):
        outpost("convert", "tiny")
