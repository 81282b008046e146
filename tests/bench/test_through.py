"""A node that tells its bench something: written whole, read once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from node.bench import through as module
from node.bench.through import asked, serve, write


def test_it_is_written_whole(tmp_path: Path) -> None:
    write(tmp_path / "told.json", {"a": 1})
    assert msgspec.json.decode((tmp_path / "told.json").read_bytes()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"]


async def test_it_is_asked_for_and_read_once(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    count = 0

    def tell() -> None:
        nonlocal count
        count += 1
        write(file, [count])

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    node: Any = SimpleNamespace(pid=os.getpid())
    try:
        assert await asked(node, file, list[int]) == [1]
        assert not file.exists()
        assert await asked(node, file, list[int]) == [2]
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)


def test_the_words_after_the_file_are_the_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(module.runpy, "run_module", lambda name, **_: seen.append([name, *sys.argv]))
    handler = signal.getsignal(signal.SIGUSR1)
    try:
        serve([str(tmp_path / "told.json"), "serve", "--set", "x=1"], lambda: "a word")
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [["node", "outpost", "serve", "--set", "x=1"]]
        assert msgspec.json.decode((tmp_path / "told.json").read_bytes()) == "a word"
    finally:
        signal.signal(signal.SIGUSR1, handler)
