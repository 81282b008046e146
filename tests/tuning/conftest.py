"""A tiny real model, and a data directory of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.settings import Engine
from tests.support import tiny_model

SMALL = Engine(slots=2, threads=1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one megabyte, in F32."""
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory."""
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"
