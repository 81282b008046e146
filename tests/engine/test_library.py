"""llama.cpp's log lines reach ours, and a missing library is an error with a remedy."""

from __future__ import annotations

import builtins
import logging
import os
import sys
from typing import Any

import pytest

from node.engine import library
from node.errors import ModelFileError


def test_log_lines_are_forwarded_one_level_milder(caplog: pytest.LogCaptureFixture) -> None:
    forward = library._log_callback(library.llama())
    with caplog.at_level(logging.DEBUG, logger="node.engine.llama_cpp"):
        for level, text in ((2, b"loading\n"), (3, b"odd\n"), (4, b"broken\xff\n"), (5, b"."), (2, b"")):
            forward(level, text, None)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "loading"),
        ("INFO", "odd"),
        ("ERROR", "broken\ufffd"),
    ]


@pytest.mark.parametrize(
    ("machine", "chosen", "expected"),
    [
        ("x86_64", None, "1000"),
        ("x86_64", "77", "77"),
        ("aarch64", None, None),
    ],
)
def test_threads_spin_briefly_where_a_spin_takes_long_and_nobody_chose(
    monkeypatch: pytest.MonkeyPatch, machine: str, chosen: str | None, expected: str | None
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if chosen:
        monkeypatch.setenv("GOMP_SPINCOUNT", chosen)
    monkeypatch.setattr(library.platform, "machine", lambda: machine)
    library.llama.__wrapped__()
    assert os.environ.get("GOMP_SPINCOUNT") == expected


def test_a_library_that_was_not_built_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("llama_cpp"):
            raise ImportError("no such module")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "llama_cpp.llama_cpp", raising=False)
    with pytest.raises(ModelFileError, match="cannot be loaded") as error:
        library.llama.__wrapped__()
    assert "tools/start" in (error.value.hint or "")
