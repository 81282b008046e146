"""Mistakes with their lines, and what a profile would change."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.cli import main
from tests.support.model_files import digest, gguf


def test_every_mistake_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('name = "a"\ndescription = "b"\n')
    bad.write_text('name = "A"\ndescription = "b"\n[settings.engine]\nslots = 0\nthreds = 1\n')
    assert main(["fleet", "validate", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: no mistakes\n"
    assert main(["fleet", "validate", str(good), str(bad)]) == 1
    said = capsys.readouterr().out
    for words in ("line 1: name", "line 4: settings.engine.slots", "line 5: settings.engine.threds", "mean threads?"):
        assert words in said
    assert said.count("\n") == 4


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xff", "not UTF-8"),
        (b'name = "a"\ndescription = "b"\n[settings.model]\nname = "/etc/passwd"\n', "may not name a path"),
        (b'name = "a"\ndescription = "b"\n[settings.fleet]\nurl = "https://elsewhere"\n', "belongs to one node alone"),
    ],
)
def test_what_no_profile_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: bytes, words: str) -> None:
    (tmp_path / "a.toml").write_bytes(raw)
    assert main(["fleet", "validate", str(tmp_path / "a.toml")]) == 1
    assert words in capsys.readouterr().out
    assert main(["fleet", "validate", str(tmp_path / "none.toml")]) == 1


def test_a_difference_in_settings_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    old, new = gguf(tmp_path / "old.gguf"), gguf(tmp_path / "new.gguf", template="another template")
    assert main(["fleet", "init"]) == 0
    for name, model, slots in (("old", old, 3), ("new", new, 5)):
        (tmp_path / f"{name}.toml").write_text(
            f'name = "kiosk"\ndescription = "b"\nmodel_sha256 = "{digest(model)}"\n[settings.engine]\nslots = {slots}\n'
        )
        assert main(["fleet", "add", f"{name}.toml", "--model", str(model), "--plain"]) == 0
    assert main(["fleet", "rollout", "spring", "--profile", "old.toml"]) == 0
    capsys.readouterr()
    assert main(["fleet", "diff", "new.toml", "--from", "spring"]) == 0
    said = capsys.readouterr().out
    assert "engine.slots  3 → 5" in said
    assert "in 2 chunks, 0.0 %" in said
    assert main(["fleet", "diff", "old.toml", "--from", "spring"]) == 0
    assert "No setting changes.\nThe model's file stays" in capsys.readouterr().out
    (tmp_path / "far.toml").write_text(f'name = "far"\ndescription = "b"\nmodel_sha256 = "{"a" * 64}"\n')
    assert main(["fleet", "diff", "far.toml", "--from", "old.toml"]) == 0
    assert "its cost is unknown" in capsys.readouterr().out
