"""A real node, a really signed repository, and kill -9: it serves the old or the new profile whenever it serves."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from node.fleet import profiles
from node.fleet.profile import Profile, parse
from node.fleet.slots import Slots, digest_of
from tests.support import fleets
from tests.support.fleets import FleetOffice
from tests.support.process import free_port, wait_ready


def profile(name: str, slots: int, more: str = "") -> Profile:
    text = f'name = "{name}"\ndescription = "d"\n[settings.engine]\nkind = "echo"\nslots = {slots}\n{more}'
    return parse(text, name)


OLD, NEW = profile("old", 2), profile("new", 5, '[[golden]]\nprompt = "ping"\ntext = "ping"\n')
BAD = profile("bad", 7, '[[golden]]\nprompt = "ping"\ntext = "pong"\n')
SLOTS = {2: "old", 5: "new", 7: "bad"}


class Life:
    """One node after another, with one data directory and one port."""

    def __init__(self, home: Path, repository: Path, root: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / "node.log"
        self._environment = {**os.environ, "OUTPOST_HOME": str(home)}
        self._command = [sys.executable, "-m", "node", "serve", "--port", str(self.port)]
        for key, value in {
            "fleet.url": repository,
            "fleet.root": root,
            "fleet.poll_s": 1,
            "tune.auto": "false",
        }.items():
            self._command += ["--set", f"{key}={value}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, env=self._environment)
        wait_ready(self.url, self.process, 120)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/v1/status", timeout=10) as response:
            return dict(json.load(response))

    def serves(self) -> str:
        """The profile that really serves, by what only it can have set; it must answer, too."""
        body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
        asked = urllib.request.Request(f"{self.url}/v1/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "hello"
        return SLOTS[self.status()["queue"]["slots"]]

    def until(self, state: str) -> dict[str, Any]:
        for _ in range(1200):
            told: dict[str, Any] = self.status()["update"]
            if told["state"] == state and (state != "idle" or "last" in told):
                return told
            time.sleep(0.05)
        raise AssertionError(f"{told}\n{self.log.read_text()[-3000:]}")


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetOffice:
    monkeypatch.setattr(fleets, "TODAY", datetime.now(UTC))
    return FleetOffice(tmp_path / "office")


@pytest.fixture
def life(tmp_path: Path, office: FleetOffice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("OUTPOST_HOME", str(home))
    profiles.use(OLD)
    life = Life(home, office.repository, office.root_file)
    yield life
    life.kill()


@pytest.mark.timeout(400)
def test_killed_again_and_again_it_ends_in_the_new_profile(office: FleetOffice, life: Life) -> None:
    office.roll_out(office.add(NEW), profile="new", probation_s=3.0)
    dice, seen = random.Random(5), []
    life.start()
    time.sleep(dice.uniform(0.0, 1.5))
    seen.append(life.serves())
    life.kill()
    life.start()
    seen.append(life.serves())
    told = life.until("idle")
    assert set(seen) <= {"old", "new"}
    assert told["last"]["outcome"] == "committed", told
    assert life.serves() == "new"
    life.kill()
    life.start()
    assert life.serves() == "new", "the pointer has moved"
    assert Slots().current == digest_of(NEW)


@pytest.mark.timeout(400)
def test_a_node_that_dies_in_probation_each_time_goes_back_to_the_old_profile(office: FleetOffice, life: Life) -> None:
    office.roll_out(office.add(NEW), profile="new", probation_s=3600.0)
    life.start()
    life.until("probation")
    for expected in ("new", "new", "old"):
        assert life.serves() == "new"
        life.kill()
        life.start()
        assert life.serves() == expected
    told = life.until("idle")
    assert told["last"]["outcome"] == "rolled back"
    assert "died 3 times" in told["last"]["reason"]


@pytest.mark.timeout(400)
def test_a_profile_that_answers_wrongly_never_serves_anybody(office: FleetOffice, life: Life) -> None:
    office.roll_out(office.add(BAD), profile="bad")
    life.start()
    told = life.until("idle")
    assert (told["last"]["outcome"], life.serves()) == ("rolled back", "old")
    assert "Golden prompt 1" in told["last"]["reason"]
