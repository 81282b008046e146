"""A loaded graph with its cache: feeds neighbouring rows some tokens each, gives the logits of each row's last one.

Rows of any length may be fed one token at a time together: the attention operator takes every row's own length from
the mask and writes the new keys and values behind it. Several tokens at once are fed to one row. Inputs and outputs are
bound by address, so that the cache never moves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from node.engine import onnx_library, providers
from node.engine.kvrows import CudaRows, HostRows, Rows, Shape
from node.engine.onnx_folder import OnnxFolder
from node.engine.onnx_graph import Value
from node.errors import EngineFailed
from node.machine.cpu import usable_cores
from node.settings import Engine as EngineSettings

Floats = npt.NDArray[np.float32]

# How long a thread waits for the others by spinning. ONNX Runtime's own choice is as fast where the cores are free, and
# beside other busy processes it makes steps half as long again (measured on 2 cores).
_SPIN_US = "50"
_BOUND_KEPT = 64  # bindings of the cache, by first row and number of rows


class Fed(NamedTuple):
    """Logits behind each row's last token `[row, vocabulary]`, all states `[row, token, size]`; good until the next."""

    logits: Floats
    states: Floats | None


class OnnxSession:
    """The graph on the best provider, with `slots` rows of `tokens` tokens. Not thread-safe."""

    def __init__(self, folder: OnnxFolder, settings: EngineSettings, tokens: int) -> None:
        self._folder = folder
        library = onnx_library.onnxruntime()
        options = library.SessionOptions()
        options.intra_op_num_threads = settings.threads or usable_cores()
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
        opened = providers.open_session(folder, settings.providers, options)
        self.provider = opened.provider
        self._session = opened.session
        shape = Shape(folder.layers, settings.slots, folder.heads, tokens, folder.head_size, folder.cache_type)
        self.rows: Rows = CudaRows(shape) if opened.on_cuda else HostRows(shape)
        self._type = np.dtype(folder.cache_type)
        self._buffers: dict[str, npt.NDArray[Any]] = {}
        self._bound = functools.lru_cache(_BOUND_KEPT)(self._bind_cache)

    def feed(self, first: int, ids: npt.NDArray[np.int64], lengths: Sequence[int], states: bool) -> Fed:
        """Feed `ids[row, token]` to rows from `first` on; `lengths` are the rows' tokens with the new ones.

        Raises EngineFailed. More than one token a row only goes for a single row.
        """
        count, new = ids.shape
        binding = self._bound(first, count)
        total = max(lengths)
        mask = (np.arange(total) < np.asarray(lengths)[:, None]).astype(np.int64)
        inputs = {self._folder.inputs.input_ids: ids, self._folder.inputs.attention_mask: mask}
        if self._folder.takes_positions:
            start = np.asarray(lengths)[:, None] - new
            inputs[self._folder.inputs.position_ids] = (start + np.arange(new)).astype(np.int64)
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        logits = self._bind_output(binding, self._folder.logits, count, 1 if self._folder.pruned else new)
        hidden = self._bind_output(binding, self._folder.states, count, new) if self._folder.states else None
        try:
            self._session.run_with_iobinding(binding)
        except onnx_library.errors() as error:
            raise EngineFailed("ONNX Runtime failed; the request was lost.") from error
        last = logits[:, -1].astype(np.float32, copy=False)
        return Fed(last, hidden.astype(np.float32, copy=False) if states and hidden is not None else None)

    def _bind_output(self, binding: Any, output: Value, count: int, tokens: int) -> npt.NDArray[Any]:
        """Memory for an output; the same as last time where it is large enough."""
        kind, shape = np.dtype(output.type), (count, tokens, output.shape[2])
        kept = self._buffers.get(output.name)
        if kept is None or kept.size < math.prod(shape):
            kept = self._buffers[output.name] = np.empty(math.prod(shape), kind)
        binding.bind_output(output.name, "cpu", 0, kind, shape, kept.ctypes.data)
        return kept[: math.prod(shape)].reshape(shape)

    def _bind_cache(self, first: int, count: int) -> Any:
        """A binding in which the cache of these rows is input and output."""
        binding = self._session.io_binding()
        rows, names = self.rows, self._folder
        shape = (count, *rows.shape.all[2:])
        past = (names.inputs.past_key_names, names.inputs.past_value_names)
        present = (names.outputs.present_key_names, names.outputs.present_value_names)
        for layer in range(names.layers):
            for kind in (0, 1):
                place = (rows.device, 0, self._type, shape, rows.pointer(layer, kind, first))
                binding.bind_input(past[kind] % layer, *place)
                binding.bind_output(present[kind] % layer, *place)
        return binding
