"""What a measurement holds for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from node.tuning.fingerprint import Machine, machine, sketch, sketch_folder

ONE = Machine(
    architecture="x86_64", board="Kiosk 3", cpu="Xeon", features=("avx2", "fma"), cores=2, gpus=(), llama_cpp="0.3.36"
)


def test_this_machine_is_itself() -> None:
    now = machine()
    assert now.cores >= 1
    assert now.architecture
    assert now.llama_cpp
    assert now.difference(machine()) == ""
    assert msgspec.json.decode(msgspec.json.encode(now), type=Machine) == now


def test_an_unknown_machine_is_a_value_too(tmp_path: Path) -> None:
    assert machine(tmp_path).cpu == ""
    assert machine(tmp_path).difference(machine(tmp_path)) == ""


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("architecture", "aarch64", "architecture was x86_64, now it is aarch64"),
        ("board", "", "board was Kiosk 3, now it is unknown"),
        ("cpu", "EPYC", "cpu was Xeon, now it is EPYC"),
        ("features", ("avx2",), "features was avx2 fma, now it is avx2"),
        ("cores", 4, "cores was 2, now it is 4"),
        ("gpus", ("H200",), "gpus was unknown, now it is H200"),
        ("llama_cpp", "0.4.0", "llama_cpp was 0.3.36, now it is 0.4.0"),
    ],
)
def test_any_difference_is_named(key: str, value: object, said: str) -> None:
    assert ONE.difference(msgspec.structs.replace(ONE, **{key: value})) == said


def test_every_key_counts() -> None:
    assert set(Machine.__struct_fields__) == {
        *("architecture", "board", "cpu", "features", "cores", "gpus", "llama_cpp")
    }


@limits(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(size=st.integers(0, 70_000), data=st.data())
def test_a_small_file_is_seen_whole(tmp_path: Path, size: int, data: st.DataObject) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(size))
    before = sketch(path)
    assert sketch(path) == before
    if size:
        at = data.draw(st.integers(0, size - 1))
        path.write_bytes(bytes(at) + b"x" + bytes(size - at - 1))
        assert sketch(path) != before
    path.write_bytes(bytes(size + 1))
    assert sketch(path) != before


def test_of_a_large_file_the_ends_and_pieces_between_count(tmp_path: Path) -> None:
    path, size = tmp_path / "a", 64 << 20
    with path.open("wb") as file:
        file.truncate(size)
    before = sketch(path)
    for at in (0, size // 3 * 2 // (1 << 20) * (1 << 20), size - 1):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"x" * min(2 << 20, size - at))
        assert sketch(path) != before, at
        before = sketch(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sketch(tmp_path / "none")


def test_a_folder_is_its_files_and_their_names(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    before = sketch_folder(tmp_path)
    assert sketch_folder(tmp_path) == before
    (tmp_path / "a").rename(tmp_path / "c")
    assert sketch_folder(tmp_path) != before
    (tmp_path / "c").rename(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"3")
    assert sketch_folder(tmp_path) != before
