"""Erasing a node that has really served somebody; the next start proves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from node.cli import main
from node.mesh import identity
from tests.support.process import free_port, wait_ready

CANARY = "my-secret-is-a-purple-giraffe"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_without_yes_it_only_shows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "node-1.db").write_text("x")
    assert main(["fleet", "wipe"]) == 2
    said = capsys.readouterr()
    assert "node-1.db" in said.out
    assert "--yes" in said.err
    assert (home / "node-1.db").exists()
    assert main(["fleet", "wipe", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["erased"] == [str(home / "node-1.db")]
    assert main(["fleet", "wipe"]) == 0
    assert "nothing" in capsys.readouterr().out


def serve(home: Path, port: int) -> subprocess.Popen[bytes]:
    more = ["--set", "streams.resumable=always", "--set", "prewarm.min_sessions=1", "--set", "tune.auto=false"]
    command = [sys.executable, "-m", "node", "serve", "--engine", "echo", "--port", str(port), *more]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OUTPOST_HOME": str(home)})
    wait_ready(f"http://127.0.0.1:{port}", process, 120)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert process.wait(60) == 0


def holds_canary(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if CANARY.encode() in path.read_bytes()]


@pytest.mark.timeout(300)
def test_nothing_of_a_user_is_left_and_a_restart_knows_nobody(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = serve(home, port)
    body = {"messages": [{"role": "user", "content": CANARY}]}
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        stream = response.headers["Outpost-Stream"]
    assert main(["fleet", "wipe", "--yes"]) == 2, "it runs"
    end(process)
    assert holds_canary(home), "it was stored, so there is something to erase"
    (home / "mesh").mkdir()
    (home / "mesh" / "key.pem").write_text("secret")
    assert main(["fleet", "wipe", "--yes"]) == 0
    assert holds_canary(home) == []
    assert not (home / "mesh").exists()

    process = serve(home, port)
    try:
        with pytest.raises(urllib.error.HTTPError) as unknown:
            urllib.request.urlopen(f"{url}/v1/streams/{stream}", timeout=60)
        with unknown.value:
            assert unknown.value.code == 404
        with urllib.request.urlopen(f"{url}/v1/prewarm", timeout=60) as response:
            assert json.load(response) == {"prefixes": []}
    finally:
        end(process)
    assert identity.load(identity.folder_in(home)) is None
