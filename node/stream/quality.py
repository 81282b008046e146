"""How good a stream felt, from when its tokens came. Times are seconds on one clock, one a token, in order.

Quality of experience is defined as in "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text Streaming
Services" (arXiv 2404.16283): a person expects the first token by some time and further ones at reading speed, and reads
no faster than that; the quality is one minus the area between the expected and the real reading line, as a share of the
area under the expected one (which grows with the delay, so that of two late answers the later one may score higher:
compare streams of one length on one link). The stall ratio is the share of the stream's time in which the text stood
still for longer than a reader at reading speed needs for a token.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

READING_RATE = 4.8  # tokens a second: about 220 English words a minute
TTFT_S = 1.0


def experience(
    times: Sequence[float], asked: float = 0.0, *, ttft_s: float = TTFT_S, rate: float = READING_RATE
) -> float:
    """Andes' QoE, 0 to 1, of a stream that was asked for at `asked`; 1 means never behind the expectation."""
    if not times:
        return 0.0
    read, behind, sum_expected = asked, 0.0, 0.0
    for number, came in enumerate(times):
        expected = asked + ttft_s + number / rate
        # A token is read when it is there, when it is expected, and when the one before was read.
        read = max(came, expected, read + 1 / rate if number else asked)
        behind += read - expected
        sum_expected += expected
    whole = len(times) * read - sum_expected
    return 1.0 - behind / whole if whole > 0 else 1.0


def stalled_s(times: Sequence[float], tolerance_s: float = 1 / READING_RATE) -> float:
    """Seconds that the text stood still beyond `tolerance_s` a token."""
    return sum(max(0.0, after - before - tolerance_s) for before, after in itertools.pairwise(times))


def stall_ratio(times: Sequence[float], tolerance_s: float = 1 / READING_RATE) -> float:
    """`stalled_s` as a share of the time from the first token to the last; 0 where there is none."""
    span = times[-1] - times[0] if times else 0.0
    return stalled_s(times, tolerance_s) / span if span > 0 else 0.0
