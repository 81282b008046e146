"""What noise does to frames on a radio modem's byte stream: `link.radio` as the node uses it, over bent bytes.

Bits flip one by one, bytes vanish and appear. A frame may be lost; a text that nobody sent must never come, and
neither noise nor a marker that is none may cost a frame that is whole.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from node.bench.report import Figure
from node.errors import LinkError
from node.link import radio
from node.link.radio import MARKER, MAX_PAYLOAD, ParityLevel, Reader, Received

FRAMES, QUICK_FRAMES = 10_000, 500
TIMES, QUICK_TIMES = 50, 5
ERROR_RATES = (1e-4, 1e-3, 3e-3)
NOISE = 64 << 10  # bytes before and after a lone frame

_SLIPS = 0.02  # frames that lose a byte, and as many that gain one
_SIZES = (20, 200)
_READ = 16  # bytes that come at a time
_LONGEST = len(radio.encode(bytes(MAX_PAYLOAD), 2))
_MARKER_HEAD = 16  # bytes of a frame that are marker and header


@dataclass(slots=True)
class Heard:
    """What became of frames: how many were sent, came, came though nobody had sent them, and needed mending."""

    sent: int = 0
    came: int = 0
    wrong: int = 0
    mended: int = 0
    air: int = 0  # bytes
    text: int = 0

    @property
    def lost(self) -> float:
        """Frames that did not come, in %."""
        return 100 * (self.sent - self.came) / max(1, self.sent)


def bent(coded: bytes, error_rate: float, rng: random.Random) -> bytes:
    """The bytes after a bad path: single bits flipped, perhaps a byte lost or added."""
    out = bytearray(coded)
    bit = _next_error(error_rate, rng)
    while bit < 8 * len(out):
        out[bit >> 3] ^= 1 << (bit & 7)
        bit += 1 + _next_error(error_rate, rng)
    if rng.random() < _SLIPS:
        del out[rng.randrange(len(out))]
    if rng.random() < _SLIPS:
        out.insert(rng.randrange(len(out)), rng.randrange(256))
    return bytes(out)


def _next_error(error_rate: float, rng: random.Random) -> int:
    """How many good bits stand before the next wrong one."""
    return int(math.log(1.0 - rng.random()) / math.log1p(-error_rate))


def hear(frames: int, error_rate: float, seed: int) -> Heard:
    """So many frames over a bad path, with as much parity as the reader asks for."""
    rng, reader, level, heard = random.Random(seed), Reader(), ParityLevel(), Heard()
    open_: dict[bytes, None] = {}
    for number in range(frames):
        text = number.to_bytes(4, "big") + rng.randbytes(rng.randint(*_SIZES))
        open_[text] = None
        coded = radio.encode(text, level.level, number)
        heard.sent, heard.air, heard.text = heard.sent + 1, heard.air + len(coded), heard.text + len(text)
        _judge(reader.feed(bent(coded, error_rate, rng)), open_, level, heard)
    _judge(reader.feed(bytes(_LONGEST)), open_, level, heard)  # what a broken promise still holds back
    return heard


def _judge(found: list[Received | LinkError], sent: dict[bytes, None], level: ParityLevel, heard: Heard) -> None:
    for one in found:
        if isinstance(one, LinkError):
            level.lost()
            continue
        level.observe(one.corrected, one.size)
        known = one.payload in sent
        sent.pop(one.payload, None)  # the same text twice would be wrong, too
        heard.came += known
        heard.wrong += not known
        heard.mended += known and one.corrected > 0


def lone(times: int, seed: int) -> tuple[int, int]:
    """Noise, a frame, noise, so often: how many were found, and how many texts nobody had sent."""
    rng, found, wrong = random.Random(seed), 0, 0
    for number in range(times):
        text = rng.randbytes(rng.randint(*_SIZES))
        air = rng.randbytes(NOISE) + radio.encode(text, number % 3) + rng.randbytes(NOISE)
        came = [one.payload for one in Reader().feed(air) if isinstance(one, Received)]
        found += text in came
        wrong += sum(one != text for one in came)
    return found, wrong


def misled(times: int, seed: int) -> tuple[int, int, int]:
    """A marker that is none before true frames, so often: frames sent and lost, and the most bytes one came too late.

    Every other marker has a perfect header, which claims what follows as its own.
    """
    rng, sent, lost, latest = random.Random(seed), 0, 0, 0
    for number in range(times):
        claimed = radio.encode(bytes(rng.randint(1, MAX_PAYLOAD)), rng.randrange(3))[:_MARKER_HEAD]
        air = bytearray(claimed if number % 2 else MARKER + rng.randbytes(rng.randint(0, 40)))
        ends: dict[bytes, int] = {}
        while len(air) < 3 * _LONGEST:
            text = len(air).to_bytes(4, "big") + rng.randbytes(rng.randint(*_SIZES))
            air += radio.encode(text, rng.randrange(3))
            ends[text] = len(air)
        late = {text: at - ends[text] for text, at in _arrivals(bytes(air) + bytes(_LONGEST))}
        sent, lost = sent + len(ends), lost + len(ends) - len(late)
        latest = max(latest, *late.values())
    return sent, lost, latest


def _arrivals(air: bytes) -> Iterator[tuple[bytes, int]]:
    """The texts, and after how many bytes each was known."""
    reader = Reader()
    for at in range(0, len(air), _READ):
        for one in reader.feed(air[at : at + _READ]):
            if isinstance(one, Received):
                yield one.payload, at + _READ


def figures(error_rate: float, frames: int, seed: int) -> list[Figure]:
    """What so many frames come to at one bit error rate."""
    heard = hear(frames, error_rate, seed)
    name = f"radio · bit errors {error_rate:g}"
    detail = (
        f"{heard.sent:,} frames, {heard.mended:,} mended; {_SLIPS:.0%} lost a byte, {_SLIPS:.0%} gained one; "
        f"{heard.air / heard.text:.2f} bytes on the air for one of text"
    )
    return [
        Figure(f"{name}: wrong texts", heard.wrong, at_most=0, detail=detail),
        Figure(f"{name}: frames lost", heard.lost, "%"),
    ]


def found(times: int, seed: int) -> list[Figure]:
    """Frames in noise and behind markers that are none."""
    hit, wrong = lone(times, seed)
    sent, lost, latest = misled(times, seed)
    noise = f"{times} frames, {NOISE >> 10} KiB of noise before and after each; {wrong} texts that nobody sent"
    return [
        Figure("radio · frames found in noise", 100 * hit / times, "%", at_least=100, detail=noise),
        Figure("radio · texts made of noise", wrong, at_most=0),
        Figure(
            "radio · frames lost behind a false marker",
            lost,
            at_most=0,
            detail=f"{times} markers, {sent:,} true frames",
        ),
        Figure("radio · a false marker holds up, at most", latest, "bytes", at_most=_LONGEST + _READ),
    ]
