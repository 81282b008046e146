"""The one thread that owns an engine, seen from the event loop as a TokenSource.

Commands go in under a lock; events come out with at most ONE `call_soon_threadsafe` per step, whatever the batch, and
none while the loop has not come round to the last one: a flood of wake-ups fills the loop's own pipe, and a signal that
finds it full is lost. While the engine decodes, the GIL is free, so the loop serves the last step's tokens during the
next step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from node.engine.base import Engine, EngineLoad
from node.errors import EngineFailed, NodeError, Unavailable
from node.generation import Embedded, Event, Failed, Finished, Model, Request, Sink

log = logging.getLogger(__name__)

_FAILURES_IN_A_ROW = 3  # steps that may raise before the engine counts as broken

Result = TypeVar("Result")


class Action(NamedTuple):
    """Something to run between two steps, and who waits for what it gives."""

    run: Callable[[Engine], Any]
    outcome: asyncio.Future[Any]


Command = tuple[str, Request | str | Action]


class Worker:
    """Runs an engine in a thread. `start` loads it; everything else is called on the loop's thread."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._open_engine = open_engine
        self._wake = threading.Condition()
        self._commands: list[Command] = []
        self._outbox: list[tuple[str, Event]] = []  # events that the loop has been woken for, and their engine's load
        self._outbox_load = EngineLoad(0, 0, 0, 0)
        self._stopping = False
        self._sinks: dict[str, Sink] = {}
        self._thread: threading.Thread | None = None
        self._model: Model | None = None
        self.load = EngineLoad(0, 0, 0, 0)  # as of the last step
        self.broken = False

    @property
    def model(self) -> Model:
        """The loaded model; there is none before `start`."""
        assert self._model is not None, "the worker was not started"
        return self._model

    async def start(self) -> None:
        """Load the engine in its thread; raises what loading raised."""
        self._loop = asyncio.get_running_loop()
        loaded: asyncio.Future[Model] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loaded,), name="engine", daemon=True)
        self._thread.start()
        self._model = await loaded

    async def stop(self) -> None:
        """End the thread after the step it is in; running requests fail as unavailable."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        gone = Unavailable("This node is shutting down.", retry_after=5)
        for _, what in self._commands:
            if isinstance(what, Action):
                _set_exception(what.outcome, gone)
        self._fail(list(self._sinks), gone)

    def submit(self, request: Request, sink: Sink) -> None:
        if self._stopping or self.broken:
            raise Unavailable("The engine is not running.", retry_after=5)
        self._sinks[request.id] = sink
        self._command("add", request)

    def cancel(self, request_id: str) -> None:
        if request_id in self._sinks:
            self._command("cancel", request_id)

    def hold(self, request_id: str, held: bool) -> None:
        if request_id in self._sinks:
            self._command("hold" if held else "go on", request_id)

    def on_engine(self, action: Callable[[Engine], Result]) -> Awaitable[Result]:
        """Run `action` on the engine's thread, between two steps; every stream waits for it, so keep it short.

        What it gives or raises comes back to whoever awaits; one that is cancelled before its turn does not run.
        """
        if self._stopping or self.broken:
            raise Unavailable("The engine is not running.", retry_after=5)
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._command("run", Action(action, outcome))
        return outcome

    def _command(self, verb: str, what: Request | str | Action) -> None:
        with self._wake:
            self._commands.append((verb, what))
            self._wake.notify()

    def _deliver(self) -> None:
        """On the loop's thread: hand the steps' events to their sinks."""
        with self._wake:
            events, self._outbox = self._outbox, []
            self.load = self._outbox_load
        self._hand_out(events)

    def _hand_out(self, events: list[tuple[str, Event]]) -> None:
        for request_id, event in events:
            sink = self._sinks.get(request_id)
            if sink is None:
                continue
            if isinstance(event, Finished | Embedded | Failed):
                del self._sinks[request_id]
            sink(event)

    def _fail(self, request_ids: list[str], error: NodeError) -> None:
        self._hand_out([(request_id, Failed(error)) for request_id in request_ids])

    # From here on: the engine's thread.

    def _run(self, loaded: asyncio.Future[Model]) -> None:
        try:
            engine = self._open_engine()
        except BaseException as error:  # noqa: BLE001  # handed to whoever awaits `start`
            self._post(_set_exception, loaded, error)
            return
        self._post(_set_result, loaded, engine.model)
        try:
            self._serve(engine)
        finally:
            engine.close()

    def _serve(self, engine: Engine) -> None:
        busy, failures = False, 0
        while (commands := self._next_commands(busy)) is not None:
            try:
                for verb, what in commands:
                    self._obey(engine, verb, what)
                events = engine.step()
                failures = 0
            except Exception as error:
                failures += 1
                log.exception("a step failed")
                self._recover(engine, commands, error, failures)
                busy = False
                continue
            load = engine.load
            busy = load.active > 0
            if events:
                self._send(events, load)

    def _send(self, events: list[tuple[str, Event]], load: EngineLoad) -> None:
        with self._wake:
            woken = bool(self._outbox)
            self._outbox += events
            self._outbox_load = load
        if not woken:
            self._post(self._deliver)

    def _next_commands(self, busy: bool) -> list[Command] | None:
        """Commands since the last step; waits for one when there is nothing else to do. None means stop."""
        with self._wake:
            while not busy and not self._commands and not self._stopping:
                self._wake.wait()
            if self._stopping:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _obey(self, engine: Engine, verb: str, what: Request | str | Action) -> None:
        if isinstance(what, Action):
            self._run_action(engine, what)
            return
        try:
            if isinstance(what, Request):
                engine.add(what)
            elif verb == "cancel":
                engine.cancel(what)
            else:
                engine.hold(what, verb == "hold")
        except NodeError as error:  # this request alone fails: the others go on
            request_id = what if isinstance(what, str) else what.id
            engine.cancel(request_id)
            self._post(self._fail, [request_id], error)

    def _run_action(self, engine: Engine, action: Action) -> None:
        if action.outcome.cancelled():
            return
        try:
            result = action.run(engine)
        except Exception as error:  # noqa: BLE001  # it belongs to whoever asked; the streams go on
            self._post(_set_exception, action.outcome, error)
        else:
            self._post(_set_result, action.outcome, result)

    def _recover(self, engine: Engine, commands: list[Command], error: Exception, failures: int) -> None:
        """Fail everything that was running, start afresh; give up after several failures in a row."""
        lost = engine.fail_all() + [what.id for _, what in commands if isinstance(what, Request)]
        failure = error if isinstance(error, NodeError) else EngineFailed("The engine failed; the request was lost.")
        self._post(self._fail, lost, failure)
        for _, what in commands:
            if isinstance(what, Action):  # those that ran have their outcome already
                self._post(_set_exception, what.outcome, failure)
        if failures >= _FAILURES_IN_A_ROW:
            self._post(self._give_up)

    def _give_up(self) -> None:
        log.error("the engine failed %d steps in a row and is given up", _FAILURES_IN_A_ROW)
        self.broken = True

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            log.debug("the event loop is gone")


def _set_result(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
