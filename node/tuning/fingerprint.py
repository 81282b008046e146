"""What a measurement holds for: this machine and this model file. Where they change, it has to be done again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path

import msgspec

from node.machine import cpu
from node.machine.board import board
from node.machine.files import ROOT
from node.machine.gpu import gpus

_SAMPLES, _SAMPLE_BYTES = 64, 64 << 10


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What speeds depend on, besides the model: also the library, whose kernels change from version to version."""

    architecture: str
    board: str
    cpu: str
    features: tuple[str, ...]
    cores: int
    gpus: tuple[str, ...]
    llama_cpp: str

    def difference(self, now: Machine) -> str:
        """The first thing that is not the same, in words; "" where all is."""
        for key in self.__struct_fields__:
            then, today = getattr(self, key), getattr(now, key)
            if then != today:
                return f"{key} was {_said(then)}, now it is {_said(today)}"
        return ""


def machine(root: Path = ROOT) -> Machine:
    """This machine as it is now."""
    return Machine(
        architecture=os.uname().machine,
        board=board(root),
        cpu=cpu.cpu_name(root),
        features=cpu.features(root),
        cores=cpu.usable_cores(root),
        gpus=tuple(gpu.name or gpu.node for gpu in gpus(root)),
        llama_cpp=importlib.metadata.version("llama-cpp-python"),
    )


def sketch(path: Path) -> str:
    """A SHA-256 over the size and 64 pieces spread over the file: quick at any size. Raises OSError.

    It tells models apart; whether every byte is right is for `outpost models verify`.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for number in range(_SAMPLES):
            file.seek(number * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def sketch_folder(path: Path) -> str:
    """The same over all files in a folder and their names."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    return hashlib.sha256("\n".join(f"{file.name} {sketch(file)}" for file in files).encode()).hexdigest()


def _said(value: str | int | tuple[str, ...]) -> str:
    return (" ".join(value) if isinstance(value, tuple) else str(value)) or "unknown"
