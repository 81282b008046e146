"""Numbers on the command line; what is none, or out of range, is refused in words."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def whole(least: int, most: int = 10**9) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least:,} to {most:,}")
        return value

    return read


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """A finite number from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most):
            within = f" from {least:,g} to {most:,g}" if math.isfinite(most) else ""
            raise argparse.ArgumentTypeError(f"{text!r} is no number{within}")
        return value

    return read


def several(one: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Such numbers, with commas between them."""

    def read(text: str) -> tuple[T, ...]:
        return tuple(one(part) for part in text.split(","))

    return read
