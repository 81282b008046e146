"""Two hosts on one machine, and what stands in their way."""

from __future__ import annotations

import os
import subprocess

import pytest

from node.bench.live.hosts import FAR, NEAR, Hosts, hosts, obstacle

needs_root = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def test_commands_run_inside() -> None:
    two = Hosts(("a-near", "a-far"), (3, 4))
    assert two.inside(far=False) == ["ip", "netns", "exec", "a-near"]
    assert two.inside(far=True)[-1] == "a-far"


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in obstacle()


@needs_root
def test_hosts_have_their_addresses_and_leave_nothing() -> None:
    prefix = f"t{os.getpid()}"
    with hosts(prefix) as two:
        for name, address in zip(two.names, (NEAR, FAR), strict=True):
            said = subprocess.run(["ip", "-n", name, "address"], capture_output=True, text=True, check=True).stdout
            assert address in said
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert prefix not in left
