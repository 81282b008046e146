"""What a node tells an authenticated neighbour of itself: enough to decide who answers, nothing of what was asked.

It comes from outside, and a neighbour may lie: every field is bounded, and what it promises is only ever a prediction.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_BYTES = 16 << 10

# It is shown on terminals, which obey control characters.
Short = Annotated[str, msgspec.Meta(max_length=128, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class Sight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node as seen by another. Two nodes with the same `model_digest` give the same tokens for the same request.

    `wait_s` is how long a standard request would wait for a slot now; `prefill_s` and `decode_s` are measured seconds a
    token. `sketch` says which prefixes are warm (see `mesh.sketch`), or with `sketch_same`, that they are as they were
    when it was last sent. `rung` is the ladder's, 0 is normal. `name` is what its people call it, `denied` the number
    of the newest list of denied nodes that it has.
    """

    id: Short
    name: Short = ""
    version: Short
    model: Short
    model_digest: Short
    context: Count
    slots: Count
    free_slots: Count
    waiting: Count
    wait_s: Seconds
    prefill_s: Seconds
    decode_s: Seconds
    rung: Count = 0
    on_battery: bool = False
    hot: bool = False
    draining: bool = False
    denied: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    sketch: Annotated[bytes, msgspec.Meta(max_length=8 << 10)] = b""
    sketch_same: bool = False


def read(raw: bytes) -> Sight:
    """Decode what a neighbour sent; raises ValueError when it is too large, malformed or out of bounds."""
    if len(raw) > MAX_BYTES:
        raise ValueError(f"a neighbour's status has more than {MAX_BYTES} bytes")
    return msgspec.msgpack.decode(raw, type=Sight)


def write(sight: Sight) -> bytes:
    """What `read` reads."""
    return msgspec.msgpack.encode(sight)
