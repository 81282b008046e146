"""What may be tried on a model and a machine, and how the tried are compared.

A variant is the form of the weights and the engine's settings. All of them together are thousands, and a trial takes
seconds; but the form of the weights decides most, and the rest hardly depend on each other. So the forms are tried
first, then, with the best one, one setting after the other, and what is better stays.

The score is the weighted geometric mean of three speed-ups over the file as shipped: ratios multiply, so that twice as
fast here and half as fast there is no gain. A visitor who is alone feels `decode`, one with a long question `prefill`,
a crowd `streams`; decode counts a little more, because most of the waiting is there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from node.settings import Engine

AS_SHIPPED = ""
ONNX = "ONNX"  # the folder that the model was converted into, for the other engine

# Form of the weights -> bits a weight, block scales included; in the order of trial: what most often wins comes first,
# because the time may be over before the last. K forms fall back to larger ones where rows are not multiples of 256.
FORMS: Mapping[str, float] = {"Q8_0": 8.5, "Q4_0": 4.5, "Q4_K_M": 4.9, "Q5_K_M": 5.7, "Q6_K": 6.6, "Q4_1": 5.0}
_EXTRA_BITS = 1.6  # embeddings stay large, and forms fall back

WEIGHTS: Mapping[str, float] = {"decode": 0.4, "prefill": 0.3, "streams": 0.3}
WARM, DRAFTED = 2.0, 1.3  # times as fast: prompts by warm prefixes, answers that come again (bench prewarm and drafts)
NOISE = 0.03  # two runs of the same thing differ by so much on a quiet machine
# What more the other engine has to bring: it keeps no warm prefixes and drafts nothing, which no trial here shows.
OTHER_ENGINE = WARM ** WEIGHTS["prefill"] * DRAFTED ** WEIGHTS["decode"] - 1
FLOOR = 0.95  # a winner must not be slower than this in any one respect


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a model; `form` is AS_SHIPPED, a key of FORMS, or ONNX with the engine of that kind."""

    form: str
    engine: Engine

    def differences(self, base: Engine) -> dict[str, str | int]:
        """The engine's keys that are not as in `base`."""
        pairs = ((key, getattr(self.engine, key)) for key in Engine.__struct_fields__)
        return {key: value for key, value in pairs if value != getattr(base, key)}

    def label(self, base: Engine) -> str:
        """What people read, like "Q8_0, threads 1"."""
        words = [f"{key} {value}" for key, value in self.differences(base).items() if key != "kind"]
        return ", ".join([self.form or "as shipped", *words])


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second: one answer, reading a prompt, all streams together."""

    decode: float
    prefill: float
    streams: float

    def over(self, other: Speed) -> Speed:
        """How many times as fast as the other, each by itself."""
        return Speed(self.decode / other.decode, self.prefill / other.prefill, self.streams / other.streams)

    def times(self, other: Speed) -> Speed:
        """Ratios over a rival times the rival's own ratios."""
        return Speed(self.decode * other.decode, self.prefill * other.prefill, self.streams * other.streams)

    @property
    def score(self) -> float:
        """Of ratios: their weighted geometric mean."""
        return math.exp(sum(weight * math.log(getattr(self, name)) for name, weight in WEIGHTS.items()))

    @property
    def least(self) -> float:
        """The smallest of the three."""
        return min(self.decode, self.prefill, self.streams)

    @property
    def worst(self) -> str:
        """Which of them that is."""
        return min(WEIGHTS, key=lambda name: float(getattr(self, name)))


def ratio(reference: Sequence[Speed], variant: Sequence[Speed]) -> Speed:
    """Speeds of two that took turns, round by round: the medians of the rounds' ratios.

    Whatever slows both sides of a round down, cancels.
    """
    return median([one.over(other) for one, other in zip(variant, reference, strict=True)])


def median(speeds: Sequence[Speed]) -> Speed:
    """Each figure's own median."""
    return Speed(*(statistics.median(getattr(speed, name) for speed in speeds) for name in WEIGHTS))


def forms(shipped: str, parameters: int, room: int | None) -> dict[str, str]:
    """Every form to try with "", or with why it cannot be: it needs more than the `room` in bytes.

    `shipped` is what most of the file's weights are in: the same form again would only lose.
    """
    found = {}
    for form in FORMS:
        if form == shipped:
            continue
        need = most_bytes(form, parameters)
        fits = room is None or need <= room
        found[form] = "" if fits else f"needs {need / 1e6:,.0f} MB, {max(room or 0, 0) / 1e6:,.0f} MB are free"
    return found


def most_bytes(form: str, parameters: int) -> int:
    """What a file in this form takes at most, about."""
    return int(parameters * (FORMS[form] + _EXTRA_BITS) / 8)


def steps(
    engine: Engine, cores: int, threads: int, speed: Speed, fixed: frozenset[str]
) -> list[tuple[str, list[int | str]]]:
    """The settings to try one after the other, each with other values than it has.

    `cores` is how many threads the machine runs at once and `threads` what the engine takes by itself; `speed` is the
    best so far. Keys in `fixed` are the operator's own and stay.
    """
    own = engine.threads or threads
    counts = sorted({cores, own - 1, own // 2} - {own, 0}, reverse=True)
    found: list[tuple[str, list[int | str]]] = [("threads", [n for n in counts if n > 0])]
    if engine.kind == "onnx":  # the others are llama.cpp's
        return [(key, values) for key, values in found if values and key not in fixed]
    # `auto` is on wherever it works, and a quantized cache needs it.
    found.append(("flash_attention", ["off"] if engine.flash_attention == "auto" and engine.kv_type == "f16" else []))
    found.append(("kv_type", ["q8_0"] if engine.kv_type == "f16" and engine.flash_attention != "off" else []))
    found.append(("ubatch", [n for n in (128, 256) if n < (engine.ubatch or engine.batch)]))
    # A larger batch only matters where a step has the time to read it.
    fits = speed.prefill * engine.prefill_step_ms / 1000
    found.append(("batch", [n for n in (2048,) if engine.batch < n and engine.batch < fits]))
    return [(key, values) for key, values in found if values and key not in fixed]


def changed(variant: Variant, key: str, value: int | str) -> Variant:
    """The variant with one setting of its engine changed."""
    return Variant(variant.form, msgspec.structs.replace(variant.engine, **{key: value}))
