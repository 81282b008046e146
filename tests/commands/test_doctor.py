import argparse
import dataclasses
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from node import settings
from node.commands import doctor
from node.commands.doctor import Check, Library
from node.engine import hardware
from node.engine.hardware import Memory
from node.settings import Engine, Model, Server, Settings
from tests.test_client import free_port, refuse, serving

MIB = 1 << 20
BUILT = Library("0.3.36", frozenset({"AVX", "AVX2", "FMA", "F16C", "SSE3", "LLAMAFILE"}))
FEATURES = ("avx", "avx2", "fma", "f16c")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty data directory and no settings of this machine."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    doctor.register(parser.add_subparsers())
    return parser.parse_args(["doctor", *arguments])


def test_python() -> None:
    assert doctor.check_python((3, 11, 0)).state == "ok"
    old = doctor.check_python((3, 10, 9))
    assert (old.state, old.found.split()[0]) == ("fail", "3.10.9")
    assert "3.11" in old.remedy


def test_build_tools_are_needed_only_to_build() -> None:
    def all_here(name: str) -> str | None:
        return f"/usr/bin/{name}"

    def none_here(name: str) -> str | None:
        return None

    def only_clang(name: str) -> str | None:
        return name if name.startswith("clang") else None

    assert [check.state for check in doctor.check_build_tools(True, all_here)] == ["ok", "ok"]
    assert [check.state for check in doctor.check_build_tools(False, none_here)] == ["ok", "ok"]
    assert [check.state for check in doctor.check_build_tools(True, only_clang)] == ["ok", "ok"]
    missing = next(doctor.check_build_tools(True, none_here))
    assert missing.state == "fail"
    assert "build-essential" in missing.remedy


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "another processor"),
        ("raise SystemExit(7)", "ended with 7"),
        ("print('hello')", "does not say"),
        ("", "does not say"),
        ("import time; time.sleep(9)", "within 0.5 seconds"),
    ],
)
def test_a_library_that_does_not_load(program: str, error: str) -> None:
    library = doctor.probe_library(program, timeout_s=0.5 if "sleep" in program else 60.0)
    assert error in library.error
    check = doctor.check_library(library)
    assert check.state == "fail"
    assert "tools/start" in check.remedy
    assert "llama-cpp-python==" in check.remedy


def test_what_a_library_says_is_understood() -> None:
    program = """print("noise")
print('{"version": "1.2", "info": "CPU : AVX = 1 | AVX2 = 0 | OPENMP = 1 | ", "gpu": true}')"""
    library = doctor.probe_library(program)
    assert library == Library("1.2", frozenset({"AVX", "OPENMP"}), gpu=True)
    assert doctor.check_library(library) == Check("llama.cpp", "ok", "llama-cpp-python 1.2 with AVX OPENMP")


def test_the_library_of_this_machine() -> None:
    library = doctor.probe_library()
    assert library.error == ""
    assert doctor.check_features(library, hardware.features()).state != "fail"


def test_built_for_this_cpu() -> None:
    assert doctor.check_features(BUILT, FEATURES).state == "ok"
    slow = doctor.check_features(BUILT, (*FEATURES, "avx512f"))
    assert (slow.state, "avx512f" in slow.found, "pip install" in slow.remedy) == ("warn", True, True)
    deadly = doctor.check_features(BUILT, ("avx",))
    assert (deadly.state, "avx2" in deadly.found) == ("fail", True)
    assert doctor.check_features(BUILT, ()).state == "ok"  # a machine that does not say is not accused


def test_gpu() -> None:
    with_gpu = dataclasses.replace(BUILT, gpu=True)
    assert doctor.check_gpu(BUILT, ()).state == "ok"
    assert doctor.check_gpu(with_gpu, ()).state == "ok"
    assert doctor.check_gpu(with_gpu, ("nvidia0",)).found == "nvidia0 can be used"
    idle = doctor.check_gpu(BUILT, ("nvhost-gpu",))
    assert (idle.state, "GGML_CUDA" in idle.remedy) == ("warn", True)


def test_settings(tmp_path: Path) -> None:
    check, known = doctor.check_settings({})
    assert (check.state, known) == ("ok", Settings())
    assert "defaults" in check.found
    check, known = doctor.check_settings({"OUTPOST_SERVER_PORT": "9", "OUTPOST_HOME": "x"})
    assert (known.server.port, "1 from the environment" in check.found) == (9, True)
    (tmp_path / "node.toml").write_text("[server]\nport = 10\n")
    check, known = doctor.check_settings({})
    assert (check.found, known.server.port) == ("node.toml", 10)
    (tmp_path / "node.toml").write_text("[server]\nprot = 10\n")
    check, known = doctor.check_settings({})
    assert (check.state, "prot" in check.found, known) == ("fail", True, Settings())


def test_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOW_DISK", 0)
    assert doctor.check_data(tmp_path / "not" / "yet") == Check("data directory", "ok", str(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(doctor, "_LOW_DISK", 1 << 60)
    low = doctor.check_data(tmp_path)
    assert (low.state, "OUTPOST_HOME" in low.remedy) == ("warn", True)
    monkeypatch.setattr(doctor, "_NO_DISK", 1 << 60)
    assert doctor.check_data(tmp_path).state == "fail"


@pytest.mark.parametrize("place", ["/proc", "a file"])
def test_a_data_directory_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    folder = Path(place) if place == "/proc" else tmp_path / "file"
    if place != "/proc":
        folder.write_text("")
    check = doctor.check_data(folder)
    assert (check.state, "cannot be written" in check.found, "OUTPOST_HOME" in check.remedy) == ("fail", True, True)


def test_a_model_that_is_not_installed() -> None:
    check, size = doctor.check_model(Settings())
    assert (check.state, size) == ("fail", 0)
    assert "outpost models pull" in check.remedy


def test_a_model_that_is_broken_or_unknown(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0")
    for name in (str(tmp_path / "broken.gguf"), str(tmp_path / "none.gguf"), "nonsense"):
        check, size = doctor.check_model(Settings(model=Model(name=name)))
        assert (check.state, size) == ("fail", 0)
        assert check.found


def test_the_echo_engine_needs_no_model() -> None:
    check, size = doctor.check_model(Settings(engine=Engine(kind="echo")))
    assert (check.state, size) == ("ok", 0)


def test_memory() -> None:
    size = 800 * MIB  # needs 1200 MiB
    assert doctor.check_memory(Memory(4096 * MIB, 2048 * MIB, None), size).state == "ok"
    assert doctor.check_memory(Memory(4096 * MIB, 1000 * MIB, None), size).state == "warn"
    assert doctor.check_memory(Memory(1024 * MIB, 1000 * MIB, None), size).state == "fail"
    assert doctor.check_memory(Memory(4096 * MIB, 900 * MIB, 1024 * MIB), size).state == "fail"
    assert doctor.check_memory(Memory(None, None, None), size).state == "ok"


def known(port: int, **more: Any) -> Settings:
    return Settings(server=Server(port=port, **more))


async def test_a_port_that_is_free() -> None:
    check = await doctor.check_port(known(free_port()))
    assert (check.state, "is free" in check.found) == ("ok", True)
    assert (await doctor.check_port(known(0))).state == "ok"


async def test_a_node_on_the_port() -> None:
    for status, state in ((200, "ok"), (503, "warn")):
        async with serving(refuse(status, {"status": "x"})) as url:
            check = await doctor.check_port(known(int(url.rpartition(":")[2])))
        assert (check.state, "a node answers" in check.found) == (state, True)


async def test_something_else_on_the_port() -> None:
    async with serving(refuse(200, b"<html>")) as url:
        check = await doctor.check_port(known(int(url.rpartition(":")[2])))
    assert (check.state, "is not a node" in check.found, "server.port" in check.remedy) == ("fail", True, True)


async def test_an_address_that_is_not_ours() -> None:
    server = Server(host="192.0.2.1", port=free_port(), api_keys=("k" * 16,))  # from a block for documentation
    check = doctor._check_free(server.host, server.port)
    assert (check.state, "192.0.2.1" in check.found, "server.host" in check.remedy) == ("fail", True, True)


def test_a_port_in_use_that_nobody_answers_at() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert doctor._check_free("127.0.0.1", holder.getsockname()[1]).state == "fail"


async def test_a_certificate_that_cannot_be_read() -> None:
    check = await doctor.check_port(known(1, tls_certificate="/nonexistent.pem", tls_key="k"))
    assert (check.state, "tls_certificate" in check.found) == ("fail", True)


def test_clock() -> None:
    assert doctor.check_clock(0.0).state == "warn"
    assert "1970-01-01" in doctor.check_clock(0.0).found
    assert doctor.check_clock(1_800_000_000.0).state == "ok"


def test_the_table() -> None:
    checks = [Check("one", "ok", "fine"), Check("longer", "fail", "bad", "first\nthen")]
    assert doctor.table(checks, colours=False) == [
        "ok    one     fine",
        "fail  longer  bad",
        "              -> first",
        "              -> then",
    ]
    assert doctor.table(checks, colours=True)[1].startswith("\x1b[31mfail\x1b[0m  longer")


def test_a_machine_that_says_nothing_is_described(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lines = doctor.describe(hardware.inspect(tmp_path, tmp_path / "empty"))
    assert "unknown" in lines[1]
    assert lines[-1].endswith("no NVIDIA device")


def test_the_whole_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_SERVER_PORT", str(free_port()))
    assert doctor.run(parse()) == 1  # the model is missing
    shown = capsys.readouterr()
    assert "outpost models pull" in shown.out
    assert "1 to mend" in shown.out
    assert "\x1b" not in shown.out
    monkeypatch.setenv("OUTPOST_ENGINE_KIND", "echo")
    assert doctor.run(parse("--json")) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["ok"] is True
    assert body["machine"]["usable_cores"] >= 1
    assert {check["state"] for check in body["checks"]} <= {"ok", "warn"}
    assert not settings.home().exists()  # it changes nothing
    assert sys.executable in body["checks"][0]["found"]
