"""The quality gate: how far a variant's words are from those of the file as it was shipped.

Both read the same texts (`texts.txt`, our own words: dialogue, prose, code, JSON, sums, tables, four languages), and at
every token the two distributions over the next one are compared:

    mean KL divergence  sum p ln(p / q) in nats, p the shipped file's, q the variant's; 0 is the same
    greedy agreement    the share of places where both would say the same token at temperature 0

The limits are settings. Where the defaults come from (SmolLM2 135M, shipped as Q4_1, x86-64 with AVX-512; a standard
error is 3 to 5 % of the KL and half a point of agreement):

                        KL       agreement
    F16                 0.0031   0.968       the very same weights, unpacked: what the kernels' roundings alone do
    ONNX, CPU           0.0038   0.962       the same 4 bits in ONNX Runtime's kernels
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

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from node.errors import ModelFileError
from node.settings import Engine
from node.tuning.reading import Distribution, Told, distributions, passages

_NOTHING = np.empty(0, np.float16)


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
        others = distributions(engine, weights, self._texts, tell)
        for (best, own), other in itertools.zip_longest(self._own, others, fillvalue=(-1, _NOTHING)):
            if isinstance(other, tuple) or own.shape != other.shape:
                raise ModelFileError(f"{weights.name} reads the same texts as other tokens; it is another model.")
            differences.append(divergence(own.astype(np.float32), other))
            same += best == int(other.argmax())
        return Quality(float(np.mean(differences)), same / len(differences), len(differences))


def divergence(own: Distribution, other: Distribution) -> float:
    """KL(own || other) in nats, of natural log-probabilities."""
    return float(np.sum(np.exp(own) * (own - other), dtype=np.float64))
