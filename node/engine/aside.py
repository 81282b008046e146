"""Reading one long prompt aside, while answers stream.

On a CPU a prompt is read well only in large batches, and a large batch would hold up every answer that streams; in
small pieces beside them, its attention costs two to four times as much. So a long prompt that arrives among streams is
read in a context and a thread of its own, with half of the cores, in full batches; the streams go on with the other
half. When it is read, its part of the cache is copied over as soon as there are cells for it, and it streams like the
rest; for one that is due, no others are begun in those cells. When the streams end before, it gets all cores. What is
warm of it is copied there first, and only the rest comes back.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from node.engine.context import CacheFull, Context, NoMemory, Part
from node.engine.cores import Cores
from node.engine.decoder import Decoder
from node.engine.running import Running
from node.errors import EngineFailed

log = logging.getLogger(__name__)

CHUNK = 256  # tokens between two looks at whether it is still wanted
LEAST = 512  # tokens of a prompt that is worth it: a second context and a copy cost some 50 ms
NICE = 5
_NAP_S = 0.02


class Aside:
    """One prompt being read; made and asked by the engine's thread."""

    def __init__(
        self, open_context: Callable[[int], Context], ids: npt.NDArray[np.int32], warm: int, state: bytes
    ) -> None:
        """`state` is that of the first `warm` tokens."""
        self._open_context = open_context
        self._ids = ids
        self._warm, self._state = warm, state
        self._wanted = True
        self._go = threading.Event()
        self._go.set()
        self._ended = threading.Event()
        self._data: bytes | None = None
        self.threads = 1
        self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether there is something to take, or it failed."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until it ended, but not longer than that."""
        self._ended.wait(seconds)

    def take(self) -> bytes | None:
        """The state of what was read; None when it could not be read here."""
        return self._data

    @property
    def paused(self) -> bool:
        """Whether it waits to go on."""
        return not self._go.is_set()

    def pause(self, paused: bool) -> None:
        """Stop within one chunk and keep what was read, or go on."""
        if paused:
            self._go.clear()
        else:
            self._go.set()

    def abandon(self) -> None:
        """Nobody wants it any more: it stops within one chunk and frees everything by itself."""
        self._wanted = False
        self._go.set()

    def join(self) -> None:
        """Wait until nothing of it is left."""
        self._thread.join()

    def _run(self) -> None:
        # Whoever streams comes first where there are more busy threads than cores.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            context = self._open_context(len(self._ids))
        except NoMemory:
            log.warning("no memory to read a long prompt aside; it is read among the streams")
            self._ended.set()
            return
        try:
            self._read(context)
        except EngineFailed as error:
            log.warning("a long prompt could not be read aside", extra={"reason": error.message})
        finally:
            context.close()
            self._ended.set()

    def _read(self, context: Context) -> None:
        if self._warm:
            context.give(0, self._state)
        chunk = min(CHUNK, context.batch)
        for start in range(self._warm, len(self._ids), chunk):
            self._go.wait()
            if not self._wanted:
                return
            context.use_threads(self.threads)
            context.decode([Part(0, start, self._ids[start : start + chunk], 0)])
        self._data = context.take(0, self._warm, len(self._ids))


class SideReader:
    """Decides what is read aside, one prompt at a time. Belongs to the engine's thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._able = decoder.threads >= 2 and not decoder.offloads
        self.cores = Cores(decoder.context, adapts=self._able)
        self._reading: tuple[Aside, Running] | None = None
        self._abandoned: list[Aside] = []
        self._refused: set[str] = set()  # requests that could not be read aside once
        self.kept = 0  # cells that the next prompt which is due needs here

    def tend(self, sequences: Sequence[Running]) -> list[Running]:
        """Take up what was read, begin the next, share out the cores; gives the sequences that were begun.

        `sequences` are those that are not held, oldest first.
        """
        if not self._able:
            return []
        if self._reading and self._reading[0].ended and self._fits(self._reading, sequences):
            self._take_up(*self._reading)
        streams = any(sequence.pending == 1 for sequence in sequences)
        for sequence in sequences:
            mine = self._reading is not None and self._reading[1] is sequence
            sequence.aside = mine or (streams and self._worth(sequence))
        begun = self._begin(sequences) if streams and self._free else []
        self.kept = max((one.pending for one in sequences if one.aside and one.due), default=0)
        self._share_cores(streams)
        return begun

    def nap(self) -> None:
        """Nothing streams: give the prompt that is read aside a moment."""
        if self._reading:
            self._reading[0].wait(_NAP_S)

    def hold(self, sequence: Running) -> None:
        """The request was held, or goes on: so does its reading."""
        if self._reading and self._reading[1] is sequence:
            self._reading[0].pause(sequence.held)

    def drop(self, sequence: Running) -> None:
        """The request is over, whatever was read of it."""
        self._refused.discard(sequence.request.id)
        if self._reading and self._reading[1] is sequence:
            self._abandon(self._reading[0])

    def close(self) -> None:
        """Stop reading; returns when no thread is left."""
        if self._reading:
            self.drop(self._reading[1])
        for one in self._abandoned:
            one.join()

    @property
    def _free(self) -> bool:
        """Whether another prompt may be begun: nothing is read, or what is read is held."""
        return self._reading is None or self._reading[0].paused

    def _abandon(self, reader: Aside) -> None:
        reader.abandon()
        self._abandoned = [*filter(lambda one: not one.ended, self._abandoned), reader]
        self._reading = None

    def _room(self, sequences: Iterable[Running]) -> int:
        """Cells that are free; each that streams needs one more."""
        return self._decoder.context.cells - sum(sequence.cached + 1 for sequence in sequences)

    def _fits(self, reading: tuple[Aside, Running], sequences: Sequence[Running]) -> bool:
        """Whether what was read has room; where nothing was, it need not have any."""
        reader, sequence = reading
        return reader.take() is None or sequence.pending <= self._room(sequences) + 1

    def _worth(self, sequence: Running) -> bool:
        new = sequence.cached == sequence.warm and sequence.request.kind == "generate"
        return new and not sequence.waiting and sequence.pending > LEAST and sequence.request.id not in self._refused

    def _begin(self, sequences: Iterable[Running]) -> list[Running]:
        """Begin with the oldest that fits the cache beside what is there, so that it can be taken up."""
        free = self._room(sequences)
        for sequence in sequences:
            if sequence.aside and sequence.pending <= free:
                if self._reading:
                    self._abandon(self._reading[0])
                warm = sequence.warm
                state = self._decoder.context.take(sequence.slot, 0, warm) if warm else b""
                self._reading = (Aside(self._open, sequence.tokens[: sequence.length - 1], warm, state), sequence)
                return [sequence]
            if sequence.aside and sequence.due:
                break  # nobody overtakes it
        return []

    def _open(self, tokens: int) -> Context:
        return self._decoder.open_context(tokens, 1, 1, 1)

    def _take_up(self, reader: Aside, sequence: Running) -> None:
        self._reading = None
        sequence.aside = False
        data = reader.take()
        try:
            if data is None:
                raise CacheFull
            self._decoder.context.give(sequence.slot, data)
        except CacheFull:
            self._refused.add(sequence.request.id)  # it is read in the steps then
            return
        sequence.cached = sequence.length - 1

    def _share_cores(self, streams: bool) -> None:
        if self._reading is None or self._free or self._reading[0].ended:
            self.cores.undivided(streams)
        else:
            self._reading[0].threads = self.cores.divided(streams)
