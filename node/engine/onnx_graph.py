"""A look at an ONNX graph before ONNX Runtime gets it: opset, inputs and outputs, and are all its weights there?

Only the skeleton is read (onnx/onnx.proto): nodes are passed over, weights inside the file are not touched, and for
weights in files beside it the place is compared with that file's size. The graph file is mapped, not loaded.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.engine import protobuf
from node.errors import ModelFileError

OPSETS = (7, 26)  # of the standard operators: what ONNX Runtime promises to run (the next one is in development)
_MAX_NAME = 1024
_MAX_OPSETS = 64
_MAX_VALUES = 65_536  # inputs, outputs, weights
_MAX_RANK = 8
TYPES = {1: "float32", 10: "float16", 16: "bfloat16", 7: "int64", 6: "int32", 3: "int8", 2: "uint8"}


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output: `type` as numpy names it, "" where that table has none; a dimension of -1 may vary."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """What the file says of itself; `weight_bytes` are those of its own file and of all files beside it."""

    opset: int
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    weight_bytes: int


def read(path: Path) -> Graph:
    """Check the graph and that every weight lies inside its file; raises ModelFileError that names what is wrong."""
    try:
        if not path.stat().st_size:
            raise ModelFileError("it is empty")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _read(memoryview(mapped), path)  # unmapped with its last view, which an error may hold for a while
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror}.") from error
    except ModelFileError as error:
        raise ModelFileError(
            f"{path} cannot be used: {error.message}.", hint=error.hint or "Convert or copy the folder again."
        ) from error


def _read(view: memoryview, path: Path) -> Graph:
    opset, graph = 0, None
    opsets = 0
    for number, value in protobuf.fields(view):
        if number == 7:
            graph = protobuf.inner(value)
        elif number == 8:
            opsets += 1
            if opsets > _MAX_OPSETS:
                raise ModelFileError(f"it claims to need more than {_MAX_OPSETS} sets of operators")
            opset = max(opset, _standard_opset(protobuf.inner(value)))
    if graph is None:
        raise ModelFileError("it has no graph")
    least, most = OPSETS
    if not least <= opset <= most:
        raise ModelFileError(f"it needs opset {opset}, and ONNX Runtime runs {least} to {most}")
    inputs, outputs, files = _read_graph(graph)
    return Graph(opset, inputs, outputs, len(view) + _check_files(files, path.parent))


def _standard_opset(message: memoryview) -> int:
    """The version, if it is that of the standard operators."""
    domain, version = "", 0
    for number, value in protobuf.fields(message):
        if number == 1:
            domain = protobuf.text(value, _MAX_NAME)
        elif number == 2:
            version = protobuf.number(value)
    return version if domain in ("", "ai.onnx") else 0


def _read_graph(graph: memoryview) -> tuple[dict[str, Value], dict[str, Value], dict[str, tuple[int, str]]]:
    """Inputs, outputs, and for every file beside the graph the byte behind its last weight, with that weight's name."""
    inputs: dict[str, Value] = {}
    outputs: dict[str, Value] = {}
    files: dict[str, tuple[int, str]] = {}
    seen = 0
    for number, value in protobuf.fields(graph):
        if number not in (5, 11, 12):
            continue
        seen += 1
        if seen > _MAX_VALUES:
            raise ModelFileError(f"it claims to have more than {_MAX_VALUES:,} weights, inputs and outputs")
        if number == 5:
            for file, end, name in _outside(protobuf.inner(value)):
                files[file] = max(files.get(file, (0, "")), (end, name))
        else:
            found = _value(protobuf.inner(value))
            (inputs if number == 11 else outputs)[found.name] = found
    return inputs, outputs, files


def _outside(tensor: memoryview) -> Iterator[tuple[str, int, str]]:
    """The file beside the graph that a weight lies in, and where it ends there; nothing for one inside."""
    name, place = "", {}
    for number, value in protobuf.fields(tensor):
        if number == 8:
            name = protobuf.text(value, _MAX_NAME)
        elif number == 13:
            pair = {key: protobuf.text(part, _MAX_NAME) for key, part in protobuf.fields(protobuf.inner(value))}
            place[pair.get(1, "")] = pair.get(2, "")
    if not place:
        return
    file, start, length = place.get("location", ""), place.get("offset") or "0", place.get("length") or "0"
    if not file or "/" in file or "\\" in file or file in (".", ".."):
        raise ModelFileError(f"the weight {name!r} claims to lie in {file!r}, which is no file beside it")
    if not (start.isdecimal() and length.isdecimal()):
        raise ModelFileError(f"the weight {name!r} claims to lie at {start!r}, {length!r} bytes long")
    yield file, int(start) + int(length), name


def _value(message: memoryview) -> Value:
    name, kind, shape = "", 0, []
    for number, value in protobuf.fields(message):
        if number == 1:
            name = protobuf.text(value, _MAX_NAME)
        elif number == 2:
            for _, tensor in _numbered(protobuf.inner(value), 1):
                for part, what in protobuf.fields(protobuf.inner(tensor)):
                    if part == 1:
                        kind = protobuf.number(what)
                    elif part == 2:
                        shape = [_dimension(protobuf.inner(one)) for _, one in _numbered(protobuf.inner(what), 1)]
    if len(shape) > _MAX_RANK:
        raise ModelFileError(f"{name!r} has {len(shape)} dimensions (at most {_MAX_RANK} can be)")
    return Value(name, TYPES.get(kind, ""), tuple(shape))


def _dimension(message: memoryview) -> int:
    return next((protobuf.number(value) for number, value in protobuf.fields(message) if number == 1), -1)


def _numbered(message: memoryview, wanted: int) -> Iterator[protobuf.Field]:
    return (field for field in protobuf.fields(message) if field[0] == wanted)


def _check_files(files: dict[str, tuple[int, str]], folder: Path) -> int:
    """The bytes of all data files; raises ModelFileError for one that is missing or too short."""
    total = 0
    for file, (end, name) in files.items():
        try:
            size = (folder / file).stat().st_size
        except FileNotFoundError as error:
            raise ModelFileError(f"its data file {file} is missing ({end:,} bytes of weights lie there)") from error
        if end > size:
            raise ModelFileError(
                f"its data file {file} is truncated: the weight {name!r} ends at byte {end:,} but the file has {size:,}"
            )
        total += size
    return total
