"""A node in a process of its own, with the echo engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.bench.process import NodeProcess


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests; the weights may."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def echo_process() -> AsyncIterator[NodeProcess]:
    async with NodeProcess(["engine.kind=echo", "queue.max_waiting=100"]) as node:
        yield node
