"""`outpost serve` as a process: what it prints, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node import settings
from node.cli import build_parser
from node.commands.serve import load_settings
from node.errors import SettingsError


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A served echo node and its address."""
    command = [sys.executable, "-m", "node", "serve", "--engine", "echo", "--port", "0", *arguments]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OUTPOST_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**clean, **environment}) as process:
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://127[0-9.:]+", line)))
            yield process, url
        finally:
            process.kill()


def test_it_says_where_it_is_and_ends_on_sigterm() -> None:
    with serving() as (process, url):
        assert process.stderr is not None
        printed = "".join(process.stderr.readline() for _ in range(6))
        assert f"page   {url}/" in printed
        assert f"curl -N {url}/v1/chat/completions" in printed
        with urllib.request.urlopen(f"{url}/health/ready") as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_the_printed_curl_line_works() -> None:
    with serving() as (process, url):
        assert process.stderr is not None
        printed = ""
        while "stop" not in printed:
            printed += process.stderr.readline()
        command = printed[printed.index("curl -N") : printed.index("  stop")]
        answer = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=20, check=True)
        assert answer.stdout.endswith("data: [DONE]\n\n")


def test_flags_file_and_environment_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[queue]\nmax_waiting = 3\n")
    arguments = [
        "serve",
        "--config",
        "mine.toml",
        "--port",
        "9",
        "--set",
        "log.level=error",
        "--set",
        "queue.max_waiting=4",
    ]
    loaded = load_settings(build_parser().parse_args(arguments))
    assert (loaded.server.port, loaded.log.level, loaded.queue.max_waiting) == (9, "error", 4)
    with pytest.raises(SettingsError, match="KEY=VALUE"):
        load_settings(build_parser().parse_args(["serve", "--set", "port"]))


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--help"])
    shown = capsys.readouterr().out
    for key, _, meaning in settings.describe():
        assert f"  {key} " in shown
        assert meaning in shown


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--set", "server.prot=1"], 2, "server.prot"),
        (["--port", "nine"], 2, "command line"),
        (["--host", "0.0.0.0"], 2, "API key"),
        (["--engine", "llama", "--model", "/nowhere/x.gguf"], 1, "no file"),
        (["--engine", "llama", "--model", "smollm3"], 1, "smollm"),
    ],
)
def test_what_is_wrong_ends_with_a_word_and_a_code(arguments: list[str], code: int, word: str) -> None:
    command = [sys.executable, "-m", "node", "serve", "--engine", "echo", "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == code
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr
