"""Memory, with and without a container around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.machine.memory import Memory, memory, most_resident, resident
from tests.support.machines import CONTAINER_V1, CONTAINER_V2, GIB, SERVER, plant


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, Memory(16 * GIB, 8 * GIB, None), id="no container"),
        pytest.param(CONTAINER_V2, Memory(16 * GIB, 3 * GIB // 2, 2 * GIB), id="v2"),
        pytest.param(CONTAINER_V1, Memory(16 * GIB, 3 * GIB + GIB // 4, 4 * GIB), id="v1"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"},
            Memory(16 * GIB, 8 * GIB, None),
            id="v2 without a limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "2:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            Memory(16 * GIB, 8 * GIB, None),
            id="v1 without a limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * GIB}\n"},
            Memory(16 * GIB, 8 * GIB, None),
            id="more than the machine has",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "-5\n"},
            Memory(16 * GIB, 8 * GIB, None),
            id="nonsense",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": f"{6 * GIB}\n",
                "sys/fs/cgroup/a/memory.max": f"{9 * GIB}\n",
            },
            Memory(16 * GIB, 6 * GIB, 6 * GIB),
            id="the tightest of several groups",
        ),
    ],
)
def test_limits(tmp_path: Path, files: dict[str, str], expected: Memory) -> None:
    assert memory(plant(tmp_path, SERVER | files)) == expected


def test_the_most_that_there_can_be() -> None:
    assert Memory(8, 4, 6).most == 6
    assert Memory(8, 4, None).most == 8
    assert Memory(None, 4, None).most is None


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert memory(tmp_path) == Memory(None, None, None)


def test_this_machine() -> None:
    found = memory()
    assert found.total
    assert found.available
    assert 0 < found.available <= found.total


def test_what_this_process_holds(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/status": "Name:\tpython\nVmRSS:\t  512 kB\n"})
    assert resident(tmp_path) == 512 * 1024
    assert resident(tmp_path / "nowhere") is None
    assert (resident() or 0) > 1 << 20


def test_the_most_of_a_process(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/7/status": "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"})
    assert most_resident(7, root) == 2 << 20
    assert most_resident(8, root) is None
    assert (most_resident(os.getpid()) or 0) > 1 << 20
