"""The quality gate: how far a variant's words are from those of the file as it was shipped.

Both read the same texts (`texts.txt`, our own words: dialogue, prose, code, JSON, sums, tables, four languages), and at
every token the two distributions over the next one are compared:

    mean KL divergence  sum p ln(p / q) in nats, p the shipped file's, q the variant's; 0 is the same
    greedy agreement    the share of places where both would say the same token at temperature 0

The limits are settings. Where the defaults come from (SmolLM2 135M, shipped as Q4_1, x86-64 with AVX-512; a standard
error is 3 to 5 % of the KL and half a point of agreement):

                        KL       agreement
    F16                 0.0031   0.968       the very same weights, unpacked: what the kernels' roundings alone do
    KV cache q8_0       0.0040   0.962
    Q8_0                0.0055   0.954       the roundings of two kernels, and no loss beyond them
    Q6_K                0.0135   0.940
    Q4_K_M              0.0611   0.871       4 bits from 4 bits: another grid for weights that already lie on one
    Q5_K_M              0.0757   0.848
    Q4_0                0.2819   0.731       the fastest by far, and at one place in four it says something else

Between 0.0135 and 0.06 lies nothing: limits of 0.02 and 0.92 stand clear of both sides. They also make sense by
themselves: from F16, an 8B model loses 0.011 as Q5_K_M and 0.031 as Q4_K_M (llama.cpp, tools/perplexity/README.md), and
whoever serves such a file has accepted that loss once; the gate does not let a machine add as much again in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from node.engine.context import STATES, Part
from node.engine.decoder import Decoder
from node.settings import Engine

_TEXTS = Path(__file__).parent / "texts.txt"
_MARK = "\n----\n"
_MOST_BYTES = 256 << 20  # of the shipped file's distributions; with a larger vocabulary fewer places are compared

Told = Callable[[int, int], None]
Distribution = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Quality:
    """Mean KL divergence in nats and greedy agreement (0 to 1), over `places`."""

    kl: float
    agreement: float
    places: int

    def refusal(self, max_kl: float, min_agreement: float) -> str:
        """Why a variant of this quality may not win; "" where it may. What is not a number may not."""
        if not self.kl <= max_kl:
            return f"KL {self.kl:.4f} is over {max_kl:g}"
        if not self.agreement >= min_agreement:
            return f"agreement {self.agreement:.3f} is under {min_agreement:g}"
        return ""


class Gate:
    """Holds the shipped file's distributions, made when the first variant is judged; at most 256 MiB."""

    def __init__(self, engine: Engine, source: Path, texts: tuple[str, ...] | None = None) -> None:
        self._engine, self._source = engine, source
        self._texts = texts if texts is not None else passages()
        self._own: list[tuple[int, npt.NDArray[np.float16]]] = []  # the likeliest token, and the log-probabilities

    def judge(self, engine: Engine, weights: Path, tell: Told = lambda done, total: None) -> Quality:
        """Read the texts with a variant and compare; `tell` hears of tokens read. Raises ModelFileError."""
        if not self._own:
            found = distributions(self._engine, self._source, self._texts, tell)
            self._own = [(int(one.argmax()), one.astype(np.float16)) for one in found]
        differences, same = [], 0
        for (best, own), other in zip(self._own, distributions(engine, weights, self._texts, tell), strict=True):
            differences.append(divergence(own.astype(np.float32), other))
            same += best == int(other.argmax())
        return Quality(float(np.mean(differences)), same / len(differences), len(differences))


def passages() -> tuple[str, ...]:
    """The texts that are shipped."""
    return tuple(_TEXTS.read_text(encoding="utf-8").strip().split(_MARK))


def divergence(own: Distribution, other: Distribution) -> float:
    """KL(own || other) in nats, of natural log-probabilities."""
    return float(np.sum(np.exp(own) * (own - other), dtype=np.float64))


def log_softmax(logits: Distribution) -> Distribution:
    """Natural log-probabilities; the same shape."""
    shifted = logits - logits.max()
    result: Distribution = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return result


def distributions(engine: Engine, weights: Path, texts: tuple[str, ...], tell: Told) -> Iterator[Distribution]:
    """The log-probabilities after every place that is compared, text by text.

    One sequence is enough, and a cache that holds the longest text: what a node would hold is not needed here.
    """
    decoder = Decoder(_small(engine, texts), weights)
    try:
        documents = [decoder.vocabulary.encode(text, special=False, bos=decoder.vocabulary.adds_bos) for text in texts]
        documents = [ids[: decoder.context_size] for ids in documents]
        total = sum(map(len, documents))
        every = stride(total, decoder.context.vocabulary_size)
        done = 0
        for ids in documents:
            decoder.context.forget_all()
            for start in range(0, len(ids), STATES):
                yield from _read(decoder, np.array(ids[start : start + STATES], np.int32), start, every)
                done += len(ids[start : start + STATES])
                tell(done, total)
    finally:
        decoder.close()


def stride(tokens: int, vocabulary: int) -> int:
    """Every how many-th place is compared, so that all that is kept fits."""
    return max(1, -(-tokens * vocabulary * np.dtype(np.float16).itemsize // _MOST_BYTES))


def _read(decoder: Decoder, ids: npt.NDArray[np.int32], start: int, every: int) -> Iterator[Distribution]:
    wanted = [index for index in range(len(ids)) if (start + index) % every == 0]
    # A part gives output for its last token only, so each token is a part.
    decoder.context.decode([Part(0, start + i, ids[i : i + 1], i in wanted) for i in range(len(ids))])
    for index in wanted:
        yield log_softmax(decoder.context.logits(index))


def _small(engine: Engine, texts: tuple[str, ...]) -> Engine:
    """The same arithmetic with one slot and a context for the longest text (a token is at least a byte)."""
    most = max(len(text.encode()) for text in texts) + 2
    return msgspec.structs.replace(
        engine, slots=1, context=most if not engine.context else min(most, engine.context), kv_tokens=0
    )
