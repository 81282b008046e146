"""An ONNX model as ONNX Runtime GenAI's builder leaves it, checked before anything is loaded.

    genai_config.json   what the model is: layers, heads, context, vocabulary, names of inputs and outputs
    model.onnx          the graph; its weights lie in model.onnx.data
    tokenizer.json      the vocabulary; tokenizer_config.json and chat_template.jinja may stand beside it

The builder has many options. What this node's engine can run is said here, with words for what it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from node.engine import onnx_graph
from node.engine.onnx_graph import Graph, Value
from node.errors import ModelFileError

CONFIG = "genai_config.json"
_TOKENIZER, _TOKENIZER_CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_MAX_BYTES = {CONFIG: 1 << 20, _TOKENIZER: 64 << 20, _TOKENIZER_CONFIG: 16 << 20, _TEMPLATE: 1 << 20}
_REQUIRED = (CONFIG, _TOKENIZER)
_CACHE_TYPES = ("float32", "float16")
_CONVERT = "Convert it again: outpost models convert"

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Token = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Inputs(msgspec.Struct, frozen=True):
    input_ids: Name = "input_ids"
    attention_mask: Name = "attention_mask"
    position_ids: Name = "position_ids"
    past_key_names: Name = "past_key_values.%d.key"
    past_value_names: Name = "past_key_values.%d.value"


class _Outputs(msgspec.Struct, frozen=True):
    logits: Name = "logits"
    hidden_states: Name = "hidden_states"
    present_key_names: Name = "present.%d.key"
    present_value_names: Name = "present.%d.value"


class _SessionOptions(msgspec.Struct, frozen=True):
    provider_options: tuple[Mapping[str, Any], ...] = ()


class _Decoder(msgspec.Struct, frozen=True):
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    num_key_value_heads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    head_size: Annotated[int, msgspec.Meta(ge=1, le=8192)]
    filename: Name = "model.onnx"
    inputs: _Inputs = _Inputs()
    outputs: _Outputs = _Outputs()
    session_options: _SessionOptions = _SessionOptions()
    sliding_window: Mapping[str, Any] | None = None


class _Model(msgspec.Struct, frozen=True):
    context_length: Count
    decoder: _Decoder
    eos_token_id: Token | tuple[Token, ...]
    vocab_size: Count


class _Search(msgspec.Struct, frozen=True):
    past_present_share_buffer: bool = False


class _Config(msgspec.Struct, frozen=True):
    model: _Model
    search: _Search = _Search()
    engine: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class OnnxFolder:
    """A checked folder. The cache is `[layers][key, value][rows, heads, tokens, head_size]` of `cache_type`.

    `states` is None where the graph does not give its hidden states out. `built_for` are GenAI's names of the providers
    that it was made for; none means the CPU.
    """

    path: Path
    graph: Path
    tokenizer: str
    tokenizer_config: Mapping[str, Any]
    chat_template: str | None
    context_length: int
    vocabulary_size: int
    eos: tuple[int, ...]
    layers: int
    heads: int
    head_size: int
    cache_type: str
    logits: Value
    states: Value | None
    built_for: tuple[str, ...]
    inputs: _Inputs
    outputs: _Outputs
    takes_positions: bool
    weight_bytes: int

    @property
    def state_size(self) -> int:
        """Numbers in a hidden state; 0 where the graph gives none out."""
        return self.states.shape[2] if self.states else 0

    @property
    def pruned(self) -> bool:
        """Whether the graph gives the logits of the last token only, and not of a whole prompt."""
        return self.logits.shape[1] == 1


def is_folder(path: Path) -> bool:
    """Whether this is an ONNX model at all; quick, and says nothing of its state."""
    return (path / CONFIG).is_file()


def read(path: Path) -> OnnxFolder:
    """Check the folder; raises ModelFileError that says what is missing or cannot be run, with the numbers."""
    for name in _REQUIRED:
        if not (path / name).is_file():
            raise ModelFileError(
                f"{path} is no ONNX model that can be served: it has no {name}.",
                hint="model.name must be a folder as `outpost models convert` makes it.",
            )
    config = _parse(path, CONFIG, _Config)
    decoder = config.model.decoder
    if Path(decoder.filename).name != decoder.filename:
        raise ModelFileError(f"{path / CONFIG} names {decoder.filename!r}, which is no file beside it.")
    graph = onnx_graph.read(path / decoder.filename)
    _check_kind(path, config)
    cache_type = _check_graph(path, config.model, graph)
    states = graph.outputs.get(decoder.outputs.hidden_states)
    eos = config.model.eos_token_id
    return OnnxFolder(
        path=path,
        graph=path / decoder.filename,
        tokenizer=_text(path, _TOKENIZER),
        tokenizer_config=_parse(path, _TOKENIZER_CONFIG, dict) if (path / _TOKENIZER_CONFIG).exists() else {},
        chat_template=_template(path),
        context_length=config.model.context_length,
        vocabulary_size=config.model.vocab_size,
        eos=eos if isinstance(eos, tuple) else (eos,),
        layers=decoder.num_hidden_layers,
        heads=decoder.num_key_value_heads,
        head_size=decoder.head_size,
        cache_type=cache_type,
        logits=graph.outputs[decoder.outputs.logits],
        states=states if states and len(states.shape) == 3 and states.shape[2] > 0 else None,
        built_for=tuple(name for options in decoder.session_options.provider_options for name in options),
        inputs=decoder.inputs,
        outputs=decoder.outputs,
        takes_positions=decoder.inputs.position_ids in graph.inputs,
        weight_bytes=graph.weight_bytes,
    )


def _check_kind(path: Path, config: _Config) -> None:
    """Refuse what the builder can make and this engine cannot run."""
    if config.engine is not None:
        raise ModelFileError(
            f"{path} was built with a paged cache, which only GenAI's own CUDA engine can run.",
            hint=f"{_CONVERT}, or build it without use_paged_attention.",
        )
    if not config.search.past_present_share_buffer:
        raise ModelFileError(
            f"The graph of {path} makes a new cache at every step (past_present_share_buffer is false).", hint=_CONVERT
        )
    if config.model.decoder.sliding_window is not None:
        raise ModelFileError(
            f"{path} was built with a sliding window over its cache.", hint="Build it with windowed_kv_cache=false."
        )


def _check_graph(path: Path, model: _Model, graph: Graph) -> str:
    """Compare the graph with its description; gives the number format of the cache."""
    decoder = model.decoder
    inputs, outputs = decoder.inputs, decoder.outputs
    past, present = (
        (inputs.past_key_names, inputs.past_value_names),
        (
            outputs.present_key_names,
            outputs.present_value_names,
        ),
    )
    if any(name.count("%d") != 1 for name in (*past, *present)):
        raise ModelFileError(f"{path / CONFIG} names caches without a %d for the layer.")
    layers = range(decoder.num_hidden_layers)
    wanted = [inputs.input_ids, inputs.attention_mask, *(name.replace("%d", str(n)) for name in past for n in layers)]
    given = [outputs.logits, *(name.replace("%d", str(n)) for name in present for n in layers)]
    missing = [name for name in wanted if name not in graph.inputs] + [n for n in given if n not in graph.outputs]
    if missing:
        raise ModelFileError(
            f"The graph of {path} and {CONFIG} do not fit together: {len(missing)} inputs and outputs are missing, "
            f"first {missing[0]}.",
            hint=_CONVERT,
        )
    like = (-1, decoder.num_key_value_heads, -1, decoder.head_size)
    kind = graph.inputs[wanted[2]].type
    for name in wanted[2:]:
        found = graph.inputs[name]
        fits = len(found.shape) == 4 and all(
            -1 in pair or len(set(pair)) == 1 for pair in zip(found.shape, like, strict=False)
        )
        if not fits or found.type != kind or kind not in _CACHE_TYPES:
            raise ModelFileError(
                f"The cache {name} of {path} is {found.type or 'of an unknown type'} {list(found.shape)}, "
                f"but it must be {' or '.join(_CACHE_TYPES)} {list(like)} in every layer."
            )
    logits = graph.outputs[outputs.logits]
    if len(logits.shape) != 3 or logits.shape[2] != model.vocab_size:
        raise ModelFileError(
            f"The graph of {path} gives logits {list(logits.shape)}, but its vocabulary has {model.vocab_size:,} "
            "tokens."
        )
    return kind


def _text(path: Path, name: str) -> str:
    file = path / name
    try:
        size, limit = file.stat().st_size, _MAX_BYTES[name]
        if size > limit:
            raise ModelFileError(f"{file} has {size:,} bytes; at most {limit:,} can be.")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{file} is not UTF-8: {error}.") from error


def _parse(path: Path, name: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(_text(path, name), type=kind)
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"{path / name} cannot be used: {error}.") from error


def _template(path: Path) -> str | None:
    """The chat template: a file of its own, or part of tokenizer_config.json in older folders."""
    if (path / _TEMPLATE).exists():
        return _text(path, _TEMPLATE)
    config = _parse(path, _TOKENIZER_CONFIG, dict) if (path / _TOKENIZER_CONFIG).exists() else {}
    template = config.get("chat_template")
    return template if isinstance(template, str) else None
