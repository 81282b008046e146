"""What a node says of itself: figures of its own rooms, the model's digest, the machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from node.admission.quota import Quotas
from node.admission.reception import Reception
from node.generation import Event, Finished, ModelInfo, Request, Started, Token
from node.layers import load
from node.machine.heat import Heat
from node.machine.supply import Supply
from node.mesh import sketch
from node.mesh.crossing import Crossing
from node.mesh.portrait import Portrait
from tests.mesh.nodes import until
from tests.support.service import ByteModel
from tests.support.sources import HandSource

INFO = ModelInfo("m", "hand", 0, 4096, 2, 256, 0, can_chat=True)
PROMPT = list(range(130))


class Kept:
    """A keeper with one warm prefix."""

    prefill_s = 0.002

    def shared(self) -> Iterator[sketch.Prefix]:
        yield None, PROMPT


class Served:
    """A model that is served by hand."""

    def __init__(self, digest: str = "") -> None:
        settings = load(environment={}, flags={"engine.kind": "echo"})
        self.model = ByteModel(INFO)
        self.hand = HandSource()
        self.reception = Reception(self.hand, INFO, settings, Quotas())
        self.keeper = Kept()
        self.crossing = Crossing(settings, self.model, digest)


def ignore(event: Event) -> None:
    pass


def portrait(look: tuple[Heat, Supply] = (Heat(), Supply())) -> Portrait:
    return Portrait(Served, lambda: look)


async def test_an_idle_node_and_a_busy_one() -> None:
    served = Served()
    drawn = Portrait(lambda: served, lambda: (Heat(), Supply()))
    seen = drawn.draw(b"k")
    assert (seen.model, seen.context, seen.slots, seen.free_slots, seen.waiting) == ("m", 4096, 2, 2, 0)
    assert (seen.prefill_s, seen.decode_s, seen.wait_s, seen.rung, seen.draining) == (0.002, 0.0, 0.0, 0, False)
    for id in "abc":
        served.reception.source.submit(Request(id, (1,), 5), ignore)
    served.hand.emit("a", Started())
    for token in range(3):
        served.hand.emit("a", Token(token, b"x"))
    seen = drawn.draw(b"k")
    assert (seen.free_slots, seen.waiting) == (0, 1)
    assert seen.decode_s > 0
    served.hand.emit("a", Finished("stop", 1, 3))
    served.reception.gate.close()
    seen = drawn.draw(b"k")
    assert (seen.draining, seen.waiting) == (True, 0)
    assert seen.decode_s > 0, "the last known pace stands"


async def test_the_sketch_is_of_what_is_warm() -> None:
    drawn = portrait().draw(b"k")
    assert sketch.warm_tokens(drawn.sketch, sketch.marks(b"k", PROMPT, "")) == 128


async def watched(drawn: Portrait, key: str) -> None:
    """Run its watch until a member of the sight is something."""
    task = asyncio.create_task(drawn.watch())
    await until(lambda: bool(getattr(drawn.draw(b"k"), key)))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_heat_and_battery() -> None:
    drawn = portrait((Heat(slowed=("the chip",)), Supply(on_battery=True)))
    assert not drawn.draw(b"k").hot
    await watched(drawn, "hot")
    assert drawn.draw(b"k").on_battery


async def test_the_digest_is_that_of_the_model_that_is_served_now() -> None:
    held = [Served("one")]
    drawn = Portrait(lambda: held[0], lambda: (Heat(), Supply()))
    assert drawn.draw(b"k").model_digest == "one"
    held[0] = Served("another")
    assert drawn.draw(b"k").model_digest == "another"
