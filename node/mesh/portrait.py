"""What this node says of itself to its neighbours, gathered from its other rooms.

Predictions are measured ones: what is not measured yet is 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from node import __version__
from node.admission.reception import Reception
from node.engine.power import Look
from node.generation import Model
from node.mesh import sketch
from node.mesh.crossing import Crossing
from node.mesh.sight import Sight

_LOOK_S = 10.0
_SKETCH_S = 5.0
_DAY_S = 86_400.0


class Warm(Protocol):
    """What keeps prefixes warm."""

    @property
    def prefill_s(self) -> float: ...

    def shared(self) -> Iterable[sketch.Prefix]: ...


class Served(Protocol):
    """A loaded model and what belongs to it."""

    reception: Reception
    crossing: Crossing

    @property
    def model(self) -> Model: ...

    @property
    def keeper(self) -> Warm: ...


class Portrait:
    """Draws this node. `served` gives what it serves at present, `look` sees its machine."""

    def __init__(self, served: Callable[[], Served], look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self._served = served
        self._look, self._clock = look, clock
        self._hot = self._on_battery = False
        self._decode_s = 0.0
        self._sketch = b""
        self._sketched = -_SKETCH_S

    def draw(self, key: bytes) -> Sight:
        """As it is now; the sketch is drawn with the fleet's key. Who it is, is added by who asks."""
        served, now = self._served(), self._clock()
        info, gate = served.model.info, served.reception.gate
        self._decode_s = gate.gap_s() or self._decode_s
        return Sight(
            id="",
            version=__version__,
            model=info.id[:128],
            model_digest=served.crossing.digest,
            context=info.context,
            slots=info.slots,
            free_slots=max(0, gate.limit - gate.running),
            waiting=gate.waiting,
            wait_s=min(gate.wait_s("standard"), _DAY_S),
            prefill_s=served.keeper.prefill_s,
            decode_s=min(self._decode_s, _DAY_S),
            rung=served.reception.rung,
            on_battery=self._on_battery,
            hot=self._hot,
            draining=gate.closed,
            sketch=self._warm_sketch(served, key, now),
        )

    async def watch(self) -> None:
        """Look at the machine every now and then, beside the event loop; ends when cancelled."""
        while True:
            heat, supply = await asyncio.to_thread(self._look)
            self._hot, self._on_battery = heat.too_hot, bool(supply.on_battery)
            await asyncio.sleep(_LOOK_S)

    def _warm_sketch(self, served: Served, key: bytes, now: float) -> bytes:
        if now - self._sketched >= _SKETCH_S:
            self._sketched = now
            self._sketch = sketch.draw(key, served.keeper.shared())
        return self._sketch
