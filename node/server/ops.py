"""What operators and their tools ask: is it alive, is it ready, how busy is it."""

from __future__ import annotations

from aiohttp import web

from node.generation import Service
from node.server import meter, replies
from node.server.boundary import json_response


def add_health(app: web.Application, service: Service) -> None:
    """Add /health/live and /health/ready; neither waits for anything."""

    async def live(request: web.Request) -> web.Response:
        return json_response(replies.encode({"status": "alive"}))

    async def ready(request: web.Request) -> web.Response:
        if service.draining:
            return json_response(replies.encode({"status": "draining"}), 503)
        if not service.ready:
            return json_response(replies.encode({"status": "starting"}), 503)
        return json_response(replies.encode({"status": "ready"}))

    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)


def add_metrics(app: web.Application, figures: meter.Meter) -> None:
    """Add /metrics."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=figures.exposition(), headers={"Content-Type": meter.CONTENT_TYPE})

    app.router.add_get("/metrics", metrics)
