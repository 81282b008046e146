"""llama.cpp as another process tells of it."""

from __future__ import annotations

import dataclasses

import pytest

from node.commands import doctor_library
from node.commands.doctor_library import Library
from node.commands.doctor_table import Check
from node.machine.cpu import features

BUILT = Library("0.3.36", frozenset({"AVX", "AVX2", "FMA", "F16C", "SSE3", "LLAMAFILE"}))
FEATURES = ("avx", "avx2", "fma", "f16c")


def test_build_tools_are_needed_only_to_build() -> None:
    def all_here(name: str) -> str | None:
        return f"/usr/bin/{name}"

    def none_here(name: str) -> str | None:
        return None

    def only_clang(name: str) -> str | None:
        return name if name.startswith("clang") else None

    assert [check.state for check in doctor_library.check_build_tools(True, all_here)] == ["ok", "ok"]
    assert [check.state for check in doctor_library.check_build_tools(False, none_here)] == ["ok", "ok"]
    assert [check.state for check in doctor_library.check_build_tools(True, only_clang)] == ["ok", "ok"]
    missing = next(doctor_library.check_build_tools(True, none_here))
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
    library = doctor_library.probe_library(program, timeout_s=0.5 if "sleep" in program else 60.0)
    assert error in library.error
    check = doctor_library.check_library(library)
    assert check.state == "fail"
    assert "tools/start" in check.remedy
    assert "llama-cpp-python==" in check.remedy


def test_what_a_library_says_is_understood() -> None:
    program = """print("noise")
print('{"version": "1.2", "info": "CPU : AVX = 1 | AVX2 = 0 | OPENMP = 1 | ", "gpu": true}')"""
    library = doctor_library.probe_library(program)
    assert library == Library("1.2", frozenset({"AVX", "OPENMP"}), gpu=True)
    assert doctor_library.check_library(library) == Check("llama.cpp", "ok", "llama-cpp-python 1.2 with AVX OPENMP")


def test_the_library_of_this_machine() -> None:
    library = doctor_library.probe_library()
    assert library.error == ""
    assert doctor_library.check_features(library, features()).state != "fail"


def test_built_for_this_cpu() -> None:
    assert doctor_library.check_features(BUILT, FEATURES).state == "ok"
    slow = doctor_library.check_features(BUILT, (*FEATURES, "avx512f"))
    assert (slow.state, "avx512f" in slow.found, "pip install" in slow.remedy) == ("warn", True, True)
    deadly = doctor_library.check_features(BUILT, ("avx",))
    assert (deadly.state, "avx2" in deadly.found) == ("fail", True)
    assert doctor_library.check_features(BUILT, ()).state == "ok"  # a machine that does not say is not accused


def test_gpu() -> None:
    with_gpu = dataclasses.replace(BUILT, gpu=True)
    assert doctor_library.check_gpu(BUILT, ()).state == "ok"
    assert doctor_library.check_gpu(with_gpu, ()).state == "ok"
    assert doctor_library.check_gpu(with_gpu, ("nvidia0",)).found == "nvidia0 can be used"
    idle = doctor_library.check_gpu(BUILT, ("nvhost-gpu",))
    assert (idle.state, "GGML_CUDA" in idle.remedy) == ("warn", True)
