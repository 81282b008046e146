"""What operators and their tools ask: is it alive, is it ready, how busy is it, how does it do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from aiohttp import web

from node.generation import Service
from node.server import meter, replies
from node.server.boundary import json_response


def add_health(app: web.Application, service: Service) -> None:
    """Add /health/live and /health/ready; neither waits for anything."""

    async def live(request: web.Request) -> web.Response:
        return json_response(replies.encode({"status": "alive"}))

    async def ready(request: web.Request) -> web.Response:
        state = _state(service)
        return json_response(replies.encode({"status": state}), 200 if state == "ready" else 503)

    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)


def add_status(
    app: web.Application, service: Service, version: str, more: Callable[[], Mapping[str, Mapping[str, object]]]
) -> None:
    """Add /v1/status: everything that `outpost status` shows; `more` gives what the service knows nothing of."""
    born = time.monotonic()

    async def status(request: web.Request) -> web.Response:
        node = {"state": _state(service), "version": version, "uptime_s": round(time.monotonic() - born, 1)}
        return json_response(replies.encode({"node": node, **service.status(), **more()}))

    app.router.add_get("/v1/status", status)


def add_metrics(app: web.Application, figures: meter.Meter) -> None:
    """Add /metrics."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=figures.exposition(), headers={"Content-Type": meter.CONTENT_TYPE})

    app.router.add_get("/metrics", metrics)


def _state(service: Service) -> str:
    if service.draining:
        return "draining"
    return "ready" if service.ready else "starting"
