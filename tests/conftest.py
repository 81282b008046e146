"""What many tests share: the default model's weights, and nodes that really listen."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from node.errors import ModelFileError
from node.models import catalog, convert
from node.models.pull import pull
from node.models.weights import locate

if TYPE_CHECKING:
    from node.runtime import Node
from node.layers import load
from node.settings import Settings, home

DEFAULT_MODEL = "smollm2-135m-instruct"


CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


# How long an example takes is up to the machine.
hypothesis.settings.register_profile("outpost", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("outpost")


def pytest_configure() -> None:
    """Each worker of a parallel run keeps to cores of its own: engines that share one spin for each other's threads.

    A worker more than there are cores goes wherever somebody waits.
    """
    number, count = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "") for name in ("", "_COUNT"))
    if number and hasattr(os, "sched_setaffinity"):
        own = sorted(CORES)[int(number.removeprefix("gw")) :: int(count)]
        if own:
            os.sched_setaffinity(0, own)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores (at most 4): many tests wait, for browsers, processes and silences."""
    return min(len(CORES) or os.cpu_count() or 1, 4) + 1


@pytest.fixture(scope="module", autouse=True)
def leaks_are_blamed_here() -> Iterator[None]:
    """What a file's tests left open fails that file, not whichever one happens to collect it later."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def every_core() -> Iterator[None]:
    """For tests of threads beside each other, which one core would keep waiting for each other for minutes."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The default model's file; fetched once into the data directory, as `outpost models pull` does."""
    try:
        return locate(DEFAULT_MODEL)
    except ModelFileError:
        return pull(catalog.load().find(DEFAULT_MODEL), home() / "models", lambda *_: None)


@pytest.fixture(scope="session")
def onnx_folder(weights: Path) -> Path:
    """The default model as ONNX; converted once into the data directory, as `outpost models convert` does.

    tools/gpu_check.py sets OUTPOST_TEST_ONNX=cuda, for the folder that was built for a card.
    """
    target: convert.Target = "cuda" if os.environ.get("OUTPOST_TEST_ONNX") == "cuda" else "cpu"
    if lacking := convert.missing():
        pytest.skip(f"converting needs {', '.join(lacking)}: tools/install.py --extra convert --extra onnx")
    return convert.convert(weights, convert.folder_of(DEFAULT_MODEL, target), target, lambda *_: None)


def settings(**flags: object) -> Settings:
    """Settings for a test: any free port, quiet; `engine_slots=2` means engine.slots = 2."""
    named = {key.replace("_", ".", 1): str(value) for key, value in flags.items()}
    return load(environment={}, flags={"server.port": "0", "log.level": "warning", **named})


@pytest.fixture
async def start_node() -> AsyncIterator[Callable[..., Awaitable[Node]]]:
    """Start nodes with settings; all are stopped after the test."""
    from node.runtime import Node

    nodes: list[Node] = []

    async def start(**flags: object) -> Node:
        node = Node(settings(**flags))
        await node.start()
        nodes.append(node)
        return node

    yield start
    await asyncio.gather(*(node.stop(grace_s=0) for node in nodes))


@pytest.fixture
async def echo_node(start_node: Callable[..., Awaitable[Node]]) -> Node:
    """A running node with the echo engine."""
    return await start_node(engine_kind="echo")
