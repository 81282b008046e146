"""Which prefixes are on disk, by which files together."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.blocks import BLOCK, Ids, Owner, common_length
from node.prewarm import states
from node.prewarm.shelf import Link, Shelf
from node.prewarm.states import StateFile, read_blocks, write


def text(size: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def joined(*parts: Ids) -> Ids:
    return np.concatenate(parts)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    opened = Shelf(tmp_path / "states", "print")
    opened.open()
    return opened


def store(shelf: Shelf, owner: Owner, ids: Ids) -> StateFile:
    """As the keeper does it: only what is new; the state of a block is its tokens."""
    start = shelf.new_part(owner, ids)
    blocks = [ids[at : at + BLOCK].tobytes() for at in range(start, len(ids), BLOCK)]
    file = write(shelf.folder, shelf.fingerprint, owner, ids, blocks)
    shelf.add(file)
    return file


def fetched(shelf: Shelf, owner: Owner, ids: Ids) -> Ids:
    """What the chain gives, cut to what is alike."""
    links = shelf.chain(owner, ids)
    states = b"".join(b"".join(read_blocks(*link)) for link in links)
    return np.frombuffer(states, np.int32)[: links[-1].end if links else 0]


def test_what_was_stored_is_there_at_the_next_start(shelf: Shelf) -> None:
    ids = text(200)
    file = store(shelf, "a", ids)
    again = Shelf(shelf.folder, "print")
    again.open()
    assert again.has("a", ids)
    assert again.bytes == shelf.bytes == file.bytes
    assert (fetched(again, "a", ids) == ids).all()


def test_a_prompt_gets_what_it_begins_with_and_tenants_are_apart(shelf: Shelf) -> None:
    ids = text(200)
    store(shelf, "a", ids)
    assert shelf.length("a", joined(ids, text(50, 1))) == 200
    assert shelf.length("a", joined(ids[:100], text(50, 1))) == 100
    assert shelf.length("b", ids) == 0
    store(shelf, None, ids[:128])
    assert shelf.length("b", ids) == 128


def test_a_longer_prefix_stores_only_its_new_part(shelf: Shelf) -> None:
    first = text(100)
    longer = joined(first, text(100, 1))
    longest = joined(longer, text(56, 2))
    base = store(shelf, "a", first)
    assert store(shelf, "a", longer).start == 64, "the block in which the first ends is stored again, whole"
    assert store(shelf, "a", longest).start == 192
    assert [link.file.start for link in shelf.chain("a", longest)] == [0, 64, 192]
    assert shelf.chain("a", longest)[0] == Link(base, 0, 64)
    assert (fetched(shelf, "a", longest) == longest).all()
    assert shelf.new_part("a", longest) == 256


def test_siblings_build_on_the_same_file(shelf: Shelf) -> None:
    preamble = text(128)
    one, two = (joined(preamble, text(80, seed)) for seed in (1, 2))
    store(shelf, "a", one)
    assert store(shelf, "a", two).start == 128
    assert (fetched(shelf, "a", two) == two).all()
    assert shelf.surplus([("a", two)]) == [], "the other's file has the preamble"
    assert len(shelf.surplus([("a", one)])) == 1


def test_what_builds_on_a_dropped_file_goes_too(shelf: Shelf) -> None:
    first = text(128)
    longer, other = joined(first, text(64, 1)), text(70, 5)
    base = store(shelf, "a", first)
    store(shelf, "a", joined(longer, text(64, 2)))
    store(shelf, "a", other)
    shelf.drop(base)
    assert [path.suffix for path in shelf.folder.iterdir()] == [".state"]
    assert shelf.has("a", other)
    assert shelf.length("a", longer) == 0


def test_foreign_damaged_and_half_written_files_are_removed_and_told_once(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    good = store(shelf, "a", text(100))
    for seed in (1, 2):
        write(shelf.folder, "another model", "a", text(100, seed), [b"x", b"y"])
    bad = store(shelf, "a", text(100, 3)).path
    bad.write_bytes(bad.read_bytes()[:-1])
    (shelf.folder / "torn.part").touch()
    again = Shelf(shelf.folder, "print")
    with caplog.at_level(logging.WARNING):
        again.open()
    assert [path for path in shelf.folder.iterdir()] == [good.path]
    assert [file.path for file in again.files] == [good.path]
    assert len(caplog.records) == 2
    assert {record.__dict__.get("files", 1) for record in caplog.records} == {1, 2}


WRITER = """
import sys, pathlib
import numpy as np
from node.prewarm.states import write
folder = pathlib.Path(sys.argv[1])
print("writing", flush=True)
for seed in range(100_000):
    ids = np.random.default_rng(seed).integers(0, 50_000, 200).astype(np.int32)
    write(folder, "print", "a", ids, [ids[at : at + 64].tobytes() * 500 for at in range(0, 200, 64)])
"""


@pytest.mark.parametrize("life_s", [0.0, 0.011, 0.023, 0.042])
def test_a_writer_that_is_killed_leaves_whole_files_or_none(tmp_path: Path, life_s: float) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        writer.stdout.readline()
        time.sleep(life_s)
        writer.kill()
    opened = Shelf(tmp_path, "print")
    opened.open()
    assert {file.path for file in opened.files} == set(tmp_path.iterdir())
    for file in opened.files:
        assert len(read_blocks(file, 0, 200)) == 4


def test_clearing_leaves_no_file(shelf: Shelf) -> None:
    store(shelf, "a", text(100))
    shelf.clear()
    assert list(shelf.folder.glob("*")) == []
    assert shelf.bytes == 0


def test_the_folder_is_private(shelf: Shelf) -> None:
    assert shelf.folder.stat().st_mode & 0o077 == 0


WORDS = [text(40, seed) for seed in range(3)]
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda words: joined(*(WORDS[n] for n in words)))
STEPS = st.lists(st.tuples(st.sampled_from(["store", "drop", "surplus"]), PROMPTS), max_size=12)


@settings(max_examples=100)
@given(steps=STEPS, asked=PROMPTS)
def test_random_shelves_give_the_longest_prefix_they_have(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Ids]], asked: Ids
) -> None:
    shelf = Shelf(tmp_path_factory.mktemp("shelf"), "print")
    kept: list[Ids] = []
    for verb, ids in steps:
        if verb == "store" and not shelf.has("a", ids):
            store(shelf, "a", ids)
            kept.append(ids)
        elif verb == "drop" and shelf.files:
            shelf.drop(shelf.files[0])
            kept = [one for one in kept if shelf.has("a", one)]
        elif verb == "surplus":
            for file in shelf.surplus([("a", one) for one in kept]):
                shelf.drop(file)
        for one in kept:
            assert (fetched(shelf, "a", one) == one).all()
        best = max((common_length(asked, one) for one in kept), default=0)
        assert shelf.length("a", asked) >= best
        got = fetched(shelf, "a", asked)
        assert (got == asked[: len(got)]).all()
        assert {file.path for file in shelf.files} == set(shelf.folder.glob(f"*{states.SUFFIX}"))
