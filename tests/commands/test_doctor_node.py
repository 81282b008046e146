"""What a node needs besides llama.cpp."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.commands import doctor_node
from node.commands.doctor_table import Check
from node.fleet import profiles
from node.fleet.footprint import Footprint, Part
from node.machine.memory import Memory
from node.settings import Engine, Model, Server, Settings, Tune
from node.tuning import tuned
from tests.test_client import free_port, refuse, serving
from tests.tuning.test_tuned import put

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty data directory and no settings of this machine."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_python() -> None:
    assert doctor_node.check_python((3, 11, 0)).state == "ok"
    old = doctor_node.check_python((3, 10, 9))
    assert (old.state, old.found.split()[0]) == ("fail", "3.10.9")
    assert "3.11" in old.remedy


def test_settings(tmp_path: Path) -> None:
    check, known = doctor_node.check_settings({})
    assert (check.state, known) == ("ok", Settings())
    assert "defaults" in check.found
    check, known = doctor_node.check_settings({"OUTPOST_SERVER_PORT": "9", "OUTPOST_HOME": "x"})
    assert (known.server.port, "1 from the environment" in check.found) == (9, True)
    (tmp_path / "node.toml").write_text("[server]\nport = 10\n")
    check, known = doctor_node.check_settings({})
    assert (check.found, known.server.port) == ("node.toml", 10)
    (tmp_path / "node.toml").write_text("[server]\nprot = 10\n")
    check, known = doctor_node.check_settings({})
    assert (check.state, "prot" in check.found, known) == ("fail", True, Settings())


def test_settings_of_a_profile() -> None:
    profiles.use(profiles.find("dev-cpu"))
    check, known = doctor_node.check_settings({})
    assert (check.state, known.engine.slots) == ("ok", 2)
    assert check.found.startswith("profile dev-cpu; defaults")
    profiles.in_use_file().write_text("name = 3")
    check, known = doctor_node.check_settings({})
    assert (check.state, "line 1: name" in check.found, known) == ("fail", True, Settings())


def test_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_node, "_LOW_DISK", 0)
    assert doctor_node.check_data(tmp_path / "not" / "yet") == Check(
        "data directory", "ok", str(tmp_path / "not" / "yet")
    )
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(doctor_node, "_LOW_DISK", 1 << 60)
    low = doctor_node.check_data(tmp_path)
    assert (low.state, "OUTPOST_HOME" in low.remedy) == ("warn", True)
    monkeypatch.setattr(doctor_node, "_NO_DISK", 1 << 60)
    assert doctor_node.check_data(tmp_path).state == "fail"


@pytest.mark.parametrize("place", ["/proc", "a file"])
def test_a_data_directory_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    folder = Path(place) if place == "/proc" else tmp_path / "file"
    if place != "/proc":
        folder.write_text("")
    check = doctor_node.check_data(folder)
    assert (check.state, "cannot be written" in check.found, "OUTPOST_HOME" in check.remedy) == ("fail", True, True)


def test_a_model_that_is_not_installed() -> None:
    check, header = doctor_node.check_model(Settings())
    assert (check.state, header) == ("fail", None)
    assert "outpost models pull" in check.remedy


def test_a_model_that_is_broken_or_unknown(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0")
    for name in (str(tmp_path / "broken.gguf"), str(tmp_path / "none.gguf"), "nonsense"):
        check, header = doctor_node.check_model(Settings(model=Model(name=name)))
        assert (check.state, header) == ("fail", None)
        assert check.found


def test_the_echo_engine_needs_no_model() -> None:
    check, header = doctor_node.check_model(Settings(engine=Engine(kind="echo")))
    assert (check.state, header) == ("ok", None)


def test_memory() -> None:
    need = Footprint((Part("weights", 1000 * MIB), Part("KV cache", 200 * MIB)))
    assert doctor_node.check_memory(need, Memory(4096 * MIB, 2048 * MIB, None)).state == "ok"
    assert doctor_node.check_memory(need, Memory(4096 * MIB, 1000 * MIB, None)).state == "warn"
    assert doctor_node.check_memory(need, Memory(1024 * MIB, 1000 * MIB, None)).state == "fail"
    assert doctor_node.check_memory(need, Memory(4096 * MIB, 900 * MIB, 1024 * MIB)).state == "fail"
    unknown = doctor_node.check_memory(need, Memory(None, None, None))
    assert unknown.state == "ok"
    assert "needs 1.3 GB: weights 1.0 GB, KV cache 209.7 MB" in unknown.found


def known(port: int, **more: Any) -> Settings:
    return Settings(server=Server(port=port, **more))


def test_tuning(tmp_path: Path) -> None:
    home, model = tmp_path / "home", tmp_path / "model.gguf"
    home.mkdir()
    model.write_bytes(b"as shipped" * 1000)
    known = Settings(model=Model(name=str(model)))

    def check(settings: Settings = known) -> Check:
        return doctor_node.check_tuning(settings)

    assert "by itself when it is idle" in check().found
    by_hand = Settings(model=Model(name=str(model)), tune=Tune(auto=False))
    assert check(by_hand).found == "not done yet: `outpost tune --apply` finds the fastest form of the model"
    made = put(home, model)
    said = "served as Q8_0, threads 1, kv_type q8_0: decode 1.20 x, prefill 2.40 x, streams 1.40 x"
    assert check() == Check("tuning", "ok", said)
    assert check(Settings(model=Model(name=str(model)), tune=Tune(use=False))).found.startswith("not used")
    tuned.write(msgspec.structs.replace(made, machine=msgspec.structs.replace(made.machine, cores=99)))
    assert check().state == "warn"
    assert "cores was 99" in check().found
    tuned.write(made)
    next(tuned.variants()).unlink()
    assert check().found.endswith("is missing")
    assert check().remedy == "Do it again: outpost tune --apply"
    put(home, model, weights=None, gains=None, engine={})
    assert check() == Check("tuning", "ok", "done; the model as shipped is the fastest here")
    model.unlink()
    assert "There is no file" in check().found


async def test_a_port_that_is_free() -> None:
    check = await doctor_node.check_port(known(free_port()))
    assert (check.state, "is free" in check.found) == ("ok", True)
    assert (await doctor_node.check_port(known(0))).state == "ok"


async def test_a_node_on_the_port() -> None:
    for status, state in ((200, "ok"), (503, "warn")):
        async with serving(refuse(status, {"status": "x"})) as url:
            check = await doctor_node.check_port(known(int(url.rpartition(":")[2])))
        assert (check.state, "a node answers" in check.found) == (state, True)


async def test_something_else_on_the_port() -> None:
    async with serving(refuse(200, b"<html>")) as url:
        check = await doctor_node.check_port(known(int(url.rpartition(":")[2])))
    assert (check.state, "is not a node" in check.found, "server.port" in check.remedy) == ("fail", True, True)


async def test_an_address_that_is_not_ours() -> None:
    server = Server(host="192.0.2.1", port=free_port(), api_keys=("k" * 16,))  # from a block for documentation
    check = doctor_node._check_free(server.host, server.port)
    assert (check.state, "192.0.2.1" in check.found, "server.host" in check.remedy) == ("fail", True, True)


def test_a_port_in_use_that_nobody_answers_at() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert doctor_node._check_free("127.0.0.1", holder.getsockname()[1]).state == "fail"


async def test_a_certificate_that_cannot_be_read() -> None:
    check = await doctor_node.check_port(known(1, tls_certificate="/nonexistent.pem", tls_key="k"))
    assert (check.state, "tls_certificate" in check.found) == ("fail", True)


def test_clock() -> None:
    assert doctor_node.check_clock(0.0).state == "warn"
    assert "1970-01-01" in doctor_node.check_clock(0.0).found
    assert doctor_node.check_clock(1_800_000_000.0).state == "ok"
