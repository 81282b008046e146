from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test of this room touches the user's data."""
    home = tmp_path / "home"
    monkeypatch.setenv("OUTPOST_HOME", str(home))
    return home
