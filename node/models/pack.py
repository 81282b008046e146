"""The third step of a conversion, in a process of its own: weights of a plain graph onto their quantized grids.

    python -m node.models.pack FOLDER TARGET     (needs the `onnx` package; prints a line "done total" as it goes)

A MatMul with constant weights becomes MatMulNBits. What a block's offset leaves beyond its whole zero point is added by
a second, small product: that of the inputs' sums over the blocks. The embedding shares the head's codes where it shared
its weights.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from node.models import grid
from node.models.grid import BLOCK, Grid

_GRAPH = "model.onnx"
_HEAD = "lm_head"


class Packer:
    """Rewrites one graph's nodes and weights."""

    def __init__(self, graph: Any, onnx: Any) -> None:
        self._graph, self._onnx = graph, onnx
        self._weights = {weight.name: weight for weight in graph.initializer}
        self._sums: dict[str, str] = {}
        self._packed: dict[str, Grid] = {}
        self._used: set[str] = set()
        self._nodes: list[Any] = []

    def run(self) -> None:
        """Pack every product with constant weights."""
        transposed = {node.output[0]: node.input[0] for node in self._graph.node if node.op_type == "Transpose"}
        nodes = list(self._graph.node)
        heads = {node.input[1] for node in nodes if node.op_type == "MatMul" and _HEAD in node.name}
        for number, node in enumerate(nodes):
            sys.stdout.write(f"{number} {len(nodes)}\n")
            if node.op_type == "MatMul" and node.input[1] in self._weights:
                self._product(node)
            elif node.op_type == "Gather" and transposed.get(node.input[0]) in heads:
                self._embedding(node, transposed[node.input[0]])
            elif not (node.op_type == "Transpose" and node.input[0] in heads):
                self._nodes.append(node)
        del self._graph.node[:], self._graph.value_info[:]
        self._graph.node.extend(self._nodes)
        kept = [weight for name, weight in self._weights.items() if name not in self._packed]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    def _product(self, node: Any) -> None:
        source, name = node.input
        found = self._grid(name, _HEAD in node.name)
        size, blocks = found.scales.shape
        output = node.output[0]
        whole = output if found.rest is None else f"{output}/whole"
        self._node(
            "MatMulNBits", [source, *self._names(name)], whole, domain="com.microsoft",
            K=blocks * BLOCK, N=size, bits=found.bits, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip
        if found.rest is not None:
            self._keep(f"{name}.rest", np.ascontiguousarray(found.rest.T))
            self._node("MatMul", [self._sum(source, blocks), f"{name}.rest"], f"{output}/rest")
            self._node("Add", [whole, f"{output}/rest"], output)

    def _embedding(self, node: Any, name: str) -> None:
        found = self._grid(name, True)
        size, blocks = found.scales.shape
        self._keep(f"{name}.shape", np.array([size, blocks * BLOCK], np.int64))
        codes, scales, zeros = self._names(name)
        self._node("Reshape", [codes, f"{name}.shape"], f"{codes}.flat")
        self._node(
            "GatherBlockQuantized", [f"{codes}.flat", node.input[1], scales, zeros], node.output[0],
            domain="com.microsoft", bits=found.bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def _grid(self, name: str, eight: bool) -> Grid:
        """The grid of a weight; the first who asks makes it."""
        if name not in self._packed:
            plain = np.ascontiguousarray(self._onnx.numpy_helper.to_array(self._weights[name]).T)
            found = self._packed[name] = grid.eight_bits(plain) if eight else grid.find(plain)
            for place, array in zip(self._names(name), (found.codes, found.scales, found.zeros), strict=True):
                self._keep(place, array)
        return self._packed[name]

    def _sum(self, source: str, blocks: int) -> str:
        """Sums of an input over its blocks; made once, however many products it goes into."""
        if source not in self._sums:
            self._keep(f"blocks.{blocks}", np.array([0, 0, blocks, BLOCK], np.int64))
            self._keep("blocks.axis", np.array([-1], np.int64))
            self._node("Reshape", [source, f"blocks.{blocks}"], f"{source}/blocks")
            self._node("ReduceSum", [f"{source}/blocks", "blocks.axis"], f"{source}/sums", keepdims=0)
            self._sums[source] = f"{source}/sums"
        return self._sums[source]

    @staticmethod
    def _names(name: str) -> tuple[str, str, str]:
        return f"{name}.codes", f"{name}.scales", f"{name}.zeros"

    def _keep(self, name: str, array: Any) -> None:
        self._weights[name] = self._onnx.numpy_helper.from_array(array, name)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))


def pack(folder: Path, target: Path) -> None:
    """Write the packed model of `folder` into `target`, which must not exist."""
    import onnx

    model = onnx.load(str(folder / _GRAPH))
    Packer(model.graph, onnx).run()
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(f"{_GRAPH}*"))
    onnx.save(model, str(target / _GRAPH), save_as_external_data=True, location=f"{_GRAPH}.data", size_threshold=1024)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
