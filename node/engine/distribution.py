"""What a model's logits and states say, as numbers for the caller; the same for every engine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from node.generation import Logprob

Floats = npt.NDArray[np.float32]


def logprob(logits: Floats, token: int, count: int) -> Logprob:
    """Log-probabilities by a stable log-softmax over the unmodified logits; `count` of the likeliest beside it."""
    peak = float(logits.max())
    total = peak + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best = np.argpartition(logits, -count)[-count:] if count else np.empty(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    top = tuple((int(other), float(logits[other]) - total) for other in best)
    return Logprob(float(logits[token]) - total, top)


def unit(vector: Floats) -> tuple[float, ...]:
    """The vector with length 1; nothing but zeros stays as it is."""
    norm = float(np.linalg.norm(vector)) or 1.0
    return tuple((vector / norm).tolist())


def pooling(setting: str, own: str) -> str:
    """How embeddings are made: the model's own way where it has one and `auto` is set, else the mean of all states."""
    if setting != "auto":
        return setting
    return "mean" if own == "none" else own
