"""What a model says at every place of the texts that are shipped, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from node.engine import onnx_folder
from node.engine.context import STATES, Part
from node.engine.decoder import Decoder
from node.engine.onnx_session import OnnxSession
from node.engine.tokenizer_json import JsonVocabulary
from node.engine.tokens import Tokens
from node.settings import Engine

_TEXTS = Path(__file__).parent / "texts.txt"
_MARK = "\n----\n"
_MOST_BYTES = 256 << 20  # of the shipped file's distributions; with a larger vocabulary fewer places are compared

Told = Callable[[int, int], None]
Distribution = npt.NDArray[np.float32]


def passages() -> tuple[str, ...]:
    """The texts that are shipped."""
    return tuple(_TEXTS.read_text(encoding="utf-8").strip().split(_MARK))


def log_softmax(logits: Distribution) -> Distribution:
    """Natural log-probabilities; the same shape."""
    shifted = logits - logits.max()
    result: Distribution = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return result


def distributions(engine: Engine, weights: Path, texts: tuple[str, ...], tell: Told) -> Iterator[Distribution]:
    """The log-probabilities after every place that is compared, text by text. Raises ModelFileError.

    One sequence is enough, and a cache that holds the longest text: what a node would hold is not needed here.
    """
    read = _read_onnx if engine.kind == "onnx" else _read_llama
    yield from read(_small(engine, texts), weights, texts, tell)


def _read_llama(engine: Engine, weights: Path, texts: tuple[str, ...], tell: Told) -> Iterator[Distribution]:
    decoder = Decoder(engine, weights)
    try:
        documents = _documents(decoder.vocabulary, texts, decoder.context_size)
        every = stride(sum(map(len, documents)), decoder.context.vocabulary_size)
        told = _Told(documents, tell)
        for ids in documents:
            decoder.context.forget_all()
            for start in range(0, len(ids), STATES):
                chunk = np.array(ids[start : start + STATES], np.int32)
                wanted = [index for index in range(len(chunk)) if (start + index) % every == 0]
                # A part gives output for its last token only, so each token is a part.
                parts = [Part(0, start + i, chunk[i : i + 1], i in wanted) for i in range(len(chunk))]
                decoder.context.decode(parts)
                for index in wanted:
                    yield log_softmax(decoder.context.logits(index))
                told.more(len(chunk))
    finally:
        decoder.close()


def _read_onnx(engine: Engine, folder: Path, texts: tuple[str, ...], tell: Told) -> Iterator[Distribution]:
    """Token by token, as answers are made."""
    use = onnx_folder.read(folder)
    vocabulary = JsonVocabulary(use.tokenizer, use.tokenizer_config, use.vocabulary_size, use.eos)
    context = min(engine.context, use.context_length)
    session = OnnxSession(use, engine, context)
    documents = _documents(vocabulary, texts, context)
    every = stride(sum(map(len, documents)), use.vocabulary_size)
    told = _Told(documents, tell)
    for ids in documents:
        for place, token in enumerate(ids):
            logits = session.feed(0, np.array([[token]], np.int64), [place + 1], False).logits
            if place % every == 0:
                yield log_softmax(logits[0])
            told.more(1)


def _documents(vocabulary: Tokens, texts: Sequence[str], context: int) -> list[list[int]]:
    return [vocabulary.encode(text, special=False, bos=vocabulary.adds_bos)[:context] for text in texts]


class _Told:
    """Counts the tokens that were read."""

    def __init__(self, documents: Sequence[Sequence[int]], tell: Told) -> None:
        self._done, self._total, self._tell = 0, sum(map(len, documents)), tell

    def more(self, tokens: int) -> None:
        self._done += tokens
        self._tell(self._done, self._total)


def stride(tokens: int, vocabulary: int) -> int:
    """Every how many-th place is compared, so that all that is kept fits."""
    return max(1, -(-tokens * vocabulary * np.dtype(np.float16).itemsize // _MOST_BYTES))


def _small(engine: Engine, texts: tuple[str, ...]) -> Engine:
    """The same arithmetic with one slot and a context for the longest text (a token is at least a byte)."""
    most = max(len(text.encode()) for text in texts) + 2
    return msgspec.structs.replace(
        engine, slots=1, context=most if not engine.context else min(most, engine.context), kv_tokens=0
    )
