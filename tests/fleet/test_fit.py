"""Which machines fit a profile and a model, with the numbers that are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.errors import ModelFileError, SettingsError
from node.fleet import fit
from node.fleet.footprint import Footprint, Part
from node.fleet.profile import Profile, parse
from node.machine.gpu import Gpu
from node.machine.hardware import Hardware
from node.machine.memory import Memory
from node.settings import Engine
from tests.fleet.support import JETSON, MACHINE, MIB, TEXT, WITH_GPU, WITH_NPU

NEED = Footprint((Part("weights", 3000 * MIB), Part("KV cache", 1000 * MIB)), (Part("weights", 4000 * MIB),))


def profile(minimum: str) -> Profile:
    return parse(f'name = "p"\ndescription = "d"\n[minimum]\n{minimum}', "p")


def test_a_machine_that_fits() -> None:
    found = {need.name: (need.enough, need.has, need.needs) for need in fit.needs(parse(TEXT, "x"), MACHINE)}
    assert found == {
        "architecture": (True, "x86_64", "x86_64 or aarch64"),
        "features": (True, "avx2 fma", "avx2 fma"),
        "cores": (True, "4", "2"),
        "memory": (True, "8,192 MiB", "1,000 MiB"),
    }
    fit.refuse_other_hardware(parse(TEXT, "x"), MACHINE)


@pytest.mark.parametrize(
    ("minimum", "machine", "fits", "has"),
    [
        ('architectures = ["riscv64"]', MACHINE, False, "x86_64"),
        ('features = ["avx2", "amx", "avx512f"]', MACHINE, False, "no amx avx512f"),
        ("cores = 5", MACHINE, False, "4"),
        ("cores = 3", replace(MACHINE, usable_cores=2), False, "2"),
        ("memory_mib = 8193", MACHINE, False, "8,192 MiB"),
        ("memory_mib = 2000", replace(MACHINE, memory=Memory(8192 * MIB, 99, 1024 * MIB)), False, "1,024 MiB"),
        ("memory_mib = 2000", replace(MACHINE, memory=Memory(None, None, None)), True, "unknown"),
        ("gpu_memory_mib = 1", MACHINE, False, "no GPU"),
        ("gpu_memory_mib = 6144", WITH_GPU, True, "6,144 MiB"),
        ("gpu_memory_mib = 6145", WITH_GPU, False, "6,144 MiB"),
        ("gpu_memory_mib = 8192", JETSON, True, "8,192 MiB"),  # a Jetson's GPU has the machine's memory
        ("gpu_memory_mib = 1", replace(MACHINE, gpus=(Gpu("nvidia0"),)), False, "unknown"),
        ('npus = ["Intel NPU", "AMD XDNA"]', WITH_NPU, True, "Intel NPU"),
        ('npus = ["AMD XDNA"]', WITH_NPU, False, "Intel NPU"),
        ('npus = ["AMD XDNA"]', MACHINE, False, "none"),
    ],
)
def test_one_need(minimum: str, machine: Hardware, fits: bool, has: str) -> None:
    asked = [need for need in fit.needs(profile(minimum), machine) if need.name != "cores" or "cores" in minimum]
    assert [(need.enough, need.has) for need in asked] == [(fits, has)]


def test_the_refusal_names_everything_that_is_missing() -> None:
    wanted = profile('architectures = ["aarch64"]\ncores = 8\nmemory_mib = 100')
    with pytest.raises(SettingsError) as error:
        fit.refuse_other_hardware(wanted, MACHINE)
    assert error.value.message.splitlines() == [
        "The profile p is for other hardware than this machine.",
        "  architecture: has x86_64, needs aarch64",
        "  cores: has 4, needs 8",
    ]
    assert error.value.hint


@pytest.mark.parametrize(
    ("engine", "gpus", "offloads", "use"),
    [
        (Engine(), WITH_GPU.gpus, True, "own"),
        (Engine(), WITH_GPU.gpus, False, "none"),
        (Engine(), (), True, "none"),
        (Engine(gpu_layers=0), WITH_GPU.gpus, True, "none"),
        (Engine(), JETSON.gpus, True, "shared"),
        (Engine(), (*JETSON.gpus, *WITH_GPU.gpus), True, "own"),
    ],
)
def test_whose_memory_a_gpu_uses(engine: Engine, gpus: tuple[Gpu, ...], offloads: bool, use: str) -> None:
    assert fit.gpu_use(engine, gpus, offloads=offloads) == use


def test_memory_for_a_model() -> None:
    found = list(fit.memory_needs(NEED, WITH_GPU))
    assert [(need.enough, need.has) for need in found] == [(True, "8,192 MiB, 4,096 MiB free"), (True, "6,144 MiB")]
    assert found[0].needs == "4,000 MiB = weights 3,000 + KV cache 1,000"
    small = replace(WITH_GPU, memory=Memory(3999 * MIB, None, None), gpus=WITH_GPU.gpus[:1])
    assert [(need.enough, need.has) for need in fit.memory_needs(NEED, small)] == [
        (False, "3,999 MiB"),
        (False, "2,048 MiB"),
    ]


def test_a_model_that_can_never_fit_is_refused_with_the_numbers() -> None:
    fit.refuse_too_large("m.gguf", NEED, Memory(4000 * MIB, 10, None))  # what is not free now may be so later
    fit.refuse_too_large("m.gguf", NEED, Memory(None, None, None))
    with pytest.raises(
        ModelFileError, match=r"m.gguf needs .* 4,000 MiB = weights 3,000 \+ .*there are 3,500 MiB"
    ) as error:
        fit.refuse_too_large("m.gguf", NEED, Memory(9000 * MIB, 9000 * MIB, 3500 * MIB))
    assert "engine.oversize" in (error.value.hint or "")
