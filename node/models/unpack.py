"""The first step of a conversion, in a process of its own: a GGUF file into the folder that GenAI's builder reads.

python -m node.models.unpack FILE TARGET     (needs torch, transformers and gguf)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# How a text is cut before it is tokenized, by `tokenizer.ggml.pre`; transformers takes GPT-2's way for every file.
# This one is that of StarCoder, SmolLM and others: every digit alone.
_DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


def unpack(source: Path, target: Path) -> None:
    """Load and de-quantize the weights, then write them with their tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(source.parent), source.name
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
    path = target / "tokenizer.json"
    path.write_text(json.dumps(cut_digits(json.loads(path.read_text()), pre_tokenizer(source)), ensure_ascii=False))


def pre_tokenizer(source: Path) -> str:
    """The file's own name for how its texts are cut; empty where it has none."""
    from gguf import GGUFReader

    field = GGUFReader(str(source)).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else ""


def cut_digits(tokenizer: dict[str, Any], pre: str) -> dict[str, Any]:
    """tokenizer.json, with digits cut apart where the model was trained so."""
    if pre in _DIGITS_ALONE:
        digits = {"type": "Digits", "individual_digits": True}
        steps = [digits, *filter(None, [tokenizer.get("pre_tokenizer")])]
        return {**tokenizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    return tokenizer


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
