"""An end's process: it works, it ends, and it tells what it saw."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from node.bench.linkworld import Talk
from node.bench.live import ends, quicends, sseends
from node.bench.live.ends import PORTS, READY, SCHEMES, obstacle
from node.bench.live.script import Script


def test_every_scheme_has_ends() -> None:
    for scheme in PORTS:
        module = ends._module(scheme)
        assert callable(module.near)
        assert callable(module.far)


def test_a_near_end_ends_by_sigterm(tmp_path: object) -> None:
    """On a host that has not the near address it says so instead of waiting."""
    script = msgspec.json.encode(Script("link", 5001, Talk(50.0, 1, 5))).decode()
    words = [sys.executable, "-m", "node.bench.live.ends", "near", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert READY not in done.stdout


def test_a_far_end_gives_up_in_time_and_still_tells() -> None:
    script = msgspec.json.encode(Script("eloquent", 5002, Talk(50.0, 1, 5), deadline_s=0.3)).decode()
    words = [sys.executable, "-m", "node.bench.live.ends", "far", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert json.loads(done.stdout)["whole"] == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quicends, "obstacle", lambda: "no aioquic")
    monkeypatch.setattr(sseends, "obstacle", lambda scheme: "no bbr")
    assert [obstacle(scheme) for scheme in SCHEMES] == ["", "", "", "", "no bbr", "no bbr", "no aioquic"]
