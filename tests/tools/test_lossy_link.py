"""The emulator: its command line, and, for root, answers of a real node over a bad path."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import trustme

ROOT = Path(__file__).parents[2]
PROMPT = "Tell me of the sea and of the ships that came back from it. " * 12
TOOL = ROOT / "tools" / "lossy_link.py"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not shutil.which("ip"),
    reason="needs root, /dev/net/tun and iproute2 to make network namespaces",
)


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lossy_link", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=90)


def test_the_command_line_is_a_path() -> None:
    module = tool()
    words = ["run", "--rtt", "150", "--loss", "5", "--burst", "60", "--rate", "9.6", "--", "true"]
    what = module.conditions(module._parser().parse_args(words))
    assert (what.rtt, what.loss, what.burst_s, what.rate) == (0.15, 0.05, 0.06, 1200)
    assert module.conditions(module._parser().parse_args(["up"])).rate == float("inf")


@pytest.mark.parametrize("words", [["run"], ["up", "--loss", "-1"], ["up", "--rtt", "nan"], []])
def test_nonsense_is_refused(words: list[str]) -> None:
    assert run(*words).returncode == 2


def test_down_without_up_says_so() -> None:
    done = run("down")
    assert done.returncode == 1
    assert "No path is up" in done.stderr


@needs_root
def test_a_near_command_that_fails_is_told_and_nothing_is_left() -> None:
    done = run("run", "--near", "false", "--", "true")
    assert done.returncode == 1
    assert "ended with 1" in done.stderr
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    assert "outpost-near" not in left


@needs_root
@pytest.mark.parametrize("transport", ["link", "sse"])
def test_a_node_answers_over_a_bad_path(tmp_path: Path, transport: str) -> None:
    certificate = trustme.CA().issue_cert("10.77.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "node.pem")
    settings = {
        "OUTPOST_SERVER_HOST": "10.77.0.1",
        "OUTPOST_SERVER_PORT": "8080",
        "OUTPOST_SERVER_API_KEYS": "k" * 16,
        "OUTPOST_SERVER_TLS_CERTIFICATE": str(tmp_path / "node.pem"),
        "OUTPOST_SERVER_TLS_KEY": str(tmp_path / "node.pem"),
        "OUTPOST_HOME": str(tmp_path),
    }
    node = f"{sys.executable} -m node serve --engine echo --link"
    ask = [sys.executable, "-m", "node", "ask", "--transport", transport, "--resume", "--json"]
    path = ["--rtt", "60", "--loss", "10", "--seed", "3", "--wait", "4"]
    done = run("run", *path, "--near", node, "--", *ask, PROMPT, environment=settings)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert PROMPT.strip() in said["text"], "the echo engine says what it is asked"
    assert said["finish_reason"] == "stop"
