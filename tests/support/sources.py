"""A TokenSource that a test plays by hand."""

from __future__ import annotations

from node.errors import NodeError
from node.generation import Event, Finished, Request, Sink


class HandSource:
    """Keeps what it is given; `emit` plays the source's part. `refuse` makes the next submit raise."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.requests: dict[str, Request] = {}
        self.cancelled: list[str] = []
        self.held: list[tuple[str, bool]] = []
        self.refuse: NodeError | None = None

    def submit(self, request: Request, sink: Sink) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.sinks[request.id] = sink
        self.requests[request.id] = request

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def hold(self, request_id: str, held: bool) -> None:
        self.held.append((request_id, held))

    def emit(self, request_id: str, event: Event) -> None:
        self.sinks[request_id](event)

    def finish(self, request_id: str) -> None:
        self.emit(request_id, Finished("stop", 1, 1))
