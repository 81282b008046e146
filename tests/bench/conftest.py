"""A node in a process of its own, with the echo engine; one for all tests of a module, since it starts in seconds."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from node.bench.process import NodeProcess


@contextmanager
def _no_settings(folder: Path) -> Iterator[None]:
    """No settings of this machine reach what is done inside; the weights may."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
            patch.delenv(name)
        patch.chdir(folder)
        yield


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path) -> Iterator[None]:
    with _no_settings(tmp_path):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def echo_process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeProcess]:
    with _no_settings(tmp_path_factory.mktemp("echo")):
        node = await NodeProcess(["engine.kind=echo", "queue.max_waiting=100"]).__aenter__()
    yield node
    await node.__aexit__(None, None, None)
