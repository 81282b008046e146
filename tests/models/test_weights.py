from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import ModelFileError
from node.models import catalog, lock, pull, weights
from tests.models.support import entry_for, silent

CONTENT = b"weights" * 1000
ENTRY = entry_for(CONTENT, "file:///missing")


@pytest.fixture
def here(data_directory: Path) -> Path:
    """The weights, installed."""
    path = weights.path_of(ENTRY)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return path


def test_weights_live_in_the_data_directory(data_directory: Path) -> None:
    assert weights.path_of(ENTRY) == data_directory / "models" / "tiny.gguf"


def test_installed_is_there_with_the_right_size(here: Path) -> None:
    assert weights.installed(ENTRY)
    here.write_bytes(CONTENT[:-1])
    assert not weights.installed(ENTRY)
    here.unlink()
    assert not weights.installed(ENTRY)


def test_verify_hashes_again(here: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    weights.verify(ENTRY, lambda *state: seen.append(state))
    assert seen == [("verifying tiny", 7000, 7000)]


def test_verify_finds_damage_and_says_how_to_mend_it(here: Path) -> None:
    here.write_bytes(b"W" + CONTENT[1:])
    with pytest.raises(ModelFileError, match="is damaged") as caught:
        weights.verify(ENTRY, silent)
    assert ENTRY.sha256 in caught.value.message
    assert caught.value.hint == "outpost models remove tiny && outpost models pull tiny"
    here.write_bytes(CONTENT[1:])
    with pytest.raises(ModelFileError, match="is 6,999 bytes, but tiny has 7,000"):
        weights.verify(ENTRY, silent)


def test_verify_of_what_is_not_here() -> None:
    with pytest.raises(ModelFileError, match="tiny is not installed") as caught:
        weights.verify(ENTRY, silent)
    assert caught.value.hint == "outpost models pull tiny"


def test_remove_deletes_all_of_it(here: Path) -> None:
    part = pull.part_path(here)
    part.write_bytes(b"abc")
    part.with_name(part.name + ".json").write_bytes(b"{}")
    assert weights.fetched_bytes(ENTRY) == 3
    assert weights.remove(ENTRY) == 7003
    assert list(here.parent.iterdir()) == []
    with pytest.raises(ModelFileError, match="is not installed"):
        weights.remove(ENTRY)


def test_remove_does_not_disturb_a_pull(here: Path) -> None:
    with (
        lock.held(pull.lock_path(here), lambda: None),
        pytest.raises(ModelFileError, match="is being fetched right now"),
    ):
        weights.remove(ENTRY)
    assert here.exists()


def test_locate_by_id(data_directory: Path) -> None:
    entry = catalog.load().default
    with pytest.raises(ModelFileError, match="is not installed") as caught:
        weights.locate(entry.id)
    assert caught.value.hint == f"outpost models pull {entry.id}"
    path = weights.path_of(entry)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(entry.size)
    assert weights.locate(entry.id) == path


def test_locate_by_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert weights.locate(str(here)) == here
    monkeypatch.setenv("HOME", str(here.parent))
    assert weights.locate("~/tiny.gguf") == here
    monkeypatch.chdir(here.parent)
    assert weights.locate("tiny.gguf") == Path("tiny.gguf")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("gone.gguf", "There is no file gone.gguf"),
        ("/dev/null", "is no file"),
        ("/", "is no file"),
        ("~nobody-of-this-name/m.gguf", "There is no file"),
        ("/dev/null/m.gguf", "Cannot open"),
        ("a\0.gguf", "Cannot open"),
        ("x" * 5000 + ".gguf", "Cannot open"),
        ("gemma", "Did you mean gemma-3-270m"),
    ],
)
def test_locate_what_is_nowhere(name: str, complaint: str) -> None:
    with pytest.raises(ModelFileError, match=complaint):
        weights.locate(name)
