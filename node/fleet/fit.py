"""Does a profile, or a model, fit this machine? Every answer has its numbers.

Too little memory at all is a refusal; too little that is free right now is only a warning, since other programs end and
the kernel gives back what it caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.errors import ModelFileError, SettingsError
from node.fleet.footprint import MIB, Footprint
from node.fleet.footprint import Gpu as GpuMemory
from node.fleet.profile import Profile
from node.machine.gpu import Gpu
from node.machine.hardware import Hardware
from node.machine.memory import Memory
from node.settings import Engine


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that is asked of the machine; `enough` is whether it has it."""

    name: str
    enough: bool
    has: str
    needs: str


def gpu_use(engine: Engine, gpus: Sequence[Gpu], *, offloads: bool) -> GpuMemory:
    """Whose memory the layers on a GPU will lie in; `offloads` is whether llama.cpp was built to use one."""
    if not engine.gpu_layers or not gpus or not offloads:
        return "none"
    return "shared" if all(gpu.shared for gpu in gpus) else "own"


def needs(profile: Profile, machine: Hardware) -> Iterator[Need]:
    """What the profile asks for by itself, and whether the machine has it; what it does not ask for gives nothing."""
    least = profile.minimum
    if least.architectures:
        fits = machine.architecture in least.architectures
        yield Need("architecture", fits, machine.architecture, " or ".join(least.architectures))
    if least.features:
        missing = [feature for feature in least.features if feature not in machine.features]
        has = f"no {' '.join(missing)}" if missing else " ".join(least.features)
        yield Need("features", not missing, has, " ".join(least.features))
    yield Need("cores", machine.usable_cores >= least.cores, str(machine.usable_cores), str(least.cores))
    if least.memory_mib:
        most = machine.memory.most
        fits = most is None or most >= least.memory_mib * MIB
        yield Need("memory", fits, _mebibytes(most), _mebibytes(least.memory_mib * MIB))
    if least.gpu_memory_mib:
        yield _gpu(profile, machine)
    if least.npus:
        kinds = [npu.kind for npu in machine.npus]
        fits = any(kind in least.npus for kind in kinds)
        yield Need("NPU", fits, ", ".join(kinds) or "none", " or ".join(least.npus))


def memory_needs(need: Footprint, machine: Hardware) -> Iterator[Need]:
    """What a model asks for, in the machine's memory and in the largest GPU's."""
    has, needed = machine.memory, _in_parts(need)
    yield Need("memory for the model", _could_hold(has, need.total), _memory(has), needed)
    if need.gpu_total:
        own = _largest_gpu(machine)
        fits = own is not None and own >= need.gpu_total
        yield Need("GPU memory for the model", fits, _mebibytes(own), _mebibytes(need.gpu_total))


def refuse_other_hardware(profile: Profile, machine: Hardware) -> None:
    """Raise SettingsError, with the numbers, unless this machine has all that the profile asks for."""
    missing = [need for need in needs(profile, machine) if not need.enough]
    if missing:
        reasons = "".join(f"\n  {need.name}: has {need.has}, needs {need.needs}" for need in missing)
        raise SettingsError(
            f"The profile {profile.name} is for other hardware than this machine.{reasons}",
            hint="`outpost profile list` shows which profiles fit here.",
        )


def refuse_too_large(name: str, need: Footprint, memory: Memory) -> None:
    """Raise ModelFileError, with the numbers, where the machine could never hold the model."""
    if not _could_hold(memory, need.total):
        raise ModelFileError(
            f"{name} needs more memory than there is: {_in_parts(need)}; there are {_mebibytes(memory.most)}.",
            hint="Choose a smaller model (`outpost models list`), lower engine.kv_tokens, engine.context or "
            "engine.slots, or set engine.kv_type to q8_0. engine.oversize = allow tries it all the same.",
        )


def _could_hold(memory: Memory, bytes_: int) -> bool:
    return memory.most is None or bytes_ <= memory.most


def _gpu(profile: Profile, machine: Hardware) -> Need:
    own, needed = _largest_gpu(machine), profile.minimum.gpu_memory_mib * MIB
    has = _mebibytes(own) if machine.gpus else "no GPU"
    return Need("GPU memory", own is not None and own >= needed, has, _mebibytes(needed))


def _largest_gpu(machine: Hardware) -> int | None:
    """Bytes of the GPU that has most; one that shares the machine's memory has all of it. None is unknown or none."""
    sizes = [machine.memory.most if gpu.shared else gpu.memory_total for gpu in machine.gpus]
    return max((size for size in sizes if size is not None), default=None)


def _memory(memory: Memory) -> str:
    free = "" if memory.available is None else f", {_mebibytes(memory.available)} free"
    return f"{_mebibytes(memory.most)}{free}"


def _in_parts(need: Footprint) -> str:
    parts = " + ".join(f"{part.name} {round(part.bytes / MIB):,}" for part in need.parts)
    return f"{_mebibytes(need.total)} = {parts}"


def _mebibytes(bytes_: int | None) -> str:
    return "unknown" if bytes_ is None else f"{round(bytes_ / MIB):,} MiB"
