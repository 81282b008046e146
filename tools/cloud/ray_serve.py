"""The cloud tier on Ray: this node's own engines as autoscaling replicas behind one OpenAI route.

Each replica is a whole node, on loopback and a port of its own, and passes on what Ray's proxy brings it: streams stay
streams, keys are checked by the node, and a client that goes away cancels its generation there. A replica is healthy
while its node is ready. SIGTERM drains: new requests get 503 with Retry-After, what runs is finished, then all ends.

Needs the extra `cloud`: tools/python tools/install.py --extra cloud. Takes the flags of `outpost serve`. Nothing is
sent to anybody: Ray's usage statistics and its dashboard stay off, and without --address Ray listens on loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from node.commands.serve import add_settings_flags, load_settings
from node.errors import NodeError, OperatorError, TooLarge, Unavailable
from node.fleet import profiles
from node.server.replies import error_body
from node.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.requests import Request
    from starlette.responses import Response

APPLICATION = "outpost"
_ROUTES = ("/v1/", "/health/")
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
_RETRY_S = 5
_DESTRUCTOR_S = 10.0  # what Ray gives a node to close, beyond its grace


@dataclass(frozen=True)
class Size:
    """How many replicas, and what each of them reserves."""

    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0


class Drain:
    """A word to all replicas, as a Ray actor: a deployment can only be changed by replacing them."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._drained = 0

    async def asked(self) -> None:
        """Comes back when draining begins."""
        await self._asked.wait()

    async def ask(self) -> None:
        """Begin."""
        self._asked.set()

    async def done(self) -> None:
        """A replica has nothing to do any more."""
        self._drained += 1

    async def drained(self) -> int:
        """How many have nothing to do any more."""
        return self._drained


class Replica:
    """One node behind the route. Ray makes it, asks it whether it is well, and ends it."""

    async def __init__(self, settings: Settings, drain: Any, alone: bool) -> None:
        from node.runtime import Node

        if alone:
            _keep_to_loopback()
        self._limit = settings.server.max_body_bytes
        self._node = Node(settings)
        await self._node.start()
        self._client = aiohttp.ClientSession(
            self._node.url,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
        )
        self._draining = False
        self._drain = asyncio.create_task(self._drained(drain))

    async def _drained(self, drain: Any) -> None:
        await drain.asked.remote()
        self._draining = True
        while (load := self._node.load()).running or load.waiting:  # noqa: ASYNC110  # a node tells no event of it
            await asyncio.sleep(0.05)
        await drain.done.remote()

    async def check_health(self) -> None:
        """Raise where the node cannot answer; Ray then replaces this replica."""
        if not self._node.ready:
            raise RuntimeError("the node is not ready")

    async def __call__(self, request: Request) -> Response:
        if self._draining:
            return _refused(Unavailable("The tier is shutting down; ask another one, or this one later."))
        if not request.url.path.startswith(_ROUTES):
            return _refused(NodeError("There is no such route; the API is under /v1/."), status=404)
        try:
            body = await _body(request, self._limit)
        except TooLarge as error:
            return _refused(error)
        return await self._pass_on(request, body)

    async def _pass_on(self, request: Request, body: bytes) -> Response:
        from starlette.responses import StreamingResponse

        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            answer = await self._client.request(request.method, path, data=body, headers=_kept(request.headers))
        except aiohttp.ClientError:
            return _refused(Unavailable("This replica's node does not answer."))
        return StreamingResponse(_pieces(answer), answer.status, _kept(answer.headers))

    async def __del__(self) -> None:
        """Ray awaits it once nothing runs here any more, or the grace period is over."""
        if hasattr(self, "_drain"):  # else it never started, and has closed what it had
            self._drain.cancel()
            await self._client.close()
            await self._node.stop(grace_s=0)


def _keep_to_loopback() -> None:
    """The one port that Ray opens on every interface, whatever it was told: a replica's own, without any key."""
    from ray.serve._private import replica

    bind = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, _: bind(server, "127.0.0.1:0")


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The answer as it comes; a reader that goes away closes it, which cancels the generation."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    finally:
        answer.close()


async def _body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise TooLarge(f"The request body is larger than {limit} bytes.")
    return bytes(body)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _refused(error: NodeError, status: int = 0) -> Response:
    from starlette.responses import Response

    headers = {"retry-after": str(_RETRY_S)} if error.status == 503 else {}
    return Response(error_body(error), status or error.status, headers, media_type="application/json")


def inner(settings: Settings, size: Size) -> Settings:
    """A replica's settings: on loopback, without what one of several behind a route cannot keep for its reader."""
    replace = msgspec.structs.replace
    return replace(
        settings,
        server=replace(settings.server, host="127.0.0.1", port=0, tls_certificate="", tls_key=""),
        engine=replace(settings.engine, threads=settings.engine.threads or max(1, int(size.cpus))),
        streams=replace(settings.streams, resumable="never"),
        link=replace(settings.link, enabled=False, serial=""),
        tune=replace(settings.tune, auto=False),
    )


def application(settings: Settings, size: Size, drain: Any, alone: bool) -> Application:
    """The deployment, as Ray Serve takes it."""
    from ray import serve

    slots, waiting = settings.engine.slots, settings.queue.max_waiting
    deployed = serve.deployment(
        Replica,
        name="node",
        max_ongoing_requests=slots + waiting,  # the node's own queue says who runs, and refuses with a reason
        max_queued_requests=max(waiting, 1),
        autoscaling_config={
            "min_replicas": size.least,
            "initial_replicas": size.least,
            "max_replicas": size.most,
            "target_ongoing_requests": max(1.0, 0.75 * slots),
        },
        ray_actor_options={"num_cpus": size.cpus, "num_gpus": size.gpus},
        health_check_period_s=5,
        health_check_timeout_s=15,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=settings.server.grace_s + _DESTRUCTOR_S,
    )
    return deployed.bind(inner(settings, size), drain, alone)


def main(argv: list[str]) -> int:
    """Deploy, serve until a signal, drain; exit code 1 with a remedy where something is missing."""
    args = _parser().parse_args(argv)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if not args.address:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's word for: this machine alone, on loopback
    for wait in ("RAY_raylet_start_wait_time_s=300", "RAY_agent_register_timeout_ms=300000"):
        os.environ.setdefault(*wait.split("="))  # small or busy machines need more than its 30 s
    try:
        size = _size(args)
        settings = load_settings(args, profiles.chosen(args.profile))
        import ray
    except OperatorError as error:
        print(f"ray_serve: {error}", file=sys.stderr)
        return 1
    except ImportError:
        print("ray_serve: Ray is missing; tools/python tools/install.py --extra cloud", file=sys.stderr)
        return 1
    if args.address:
        ray.init(args.address)
    else:
        ray.init("local", include_dashboard=False)
    try:
        return _serve(settings, size, alone=not args.address)
    finally:
        ray.shutdown()


def _serve(settings: Settings, size: Size, alone: bool) -> int:
    import ray
    from ray import serve

    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    server = settings.server
    port = server.port or _free_port(server.host)
    http = {"host": server.host, "port": port, "keep_alive_timeout_s": 75}
    if server.tls_certificate:
        http |= {"ssl_certfile": server.tls_certificate, "ssl_keyfile": server.tls_key}
    serve.start(proxy_location="HeadOnly", http_options=http)
    try:
        drain = ray.remote(num_cpus=0)(Drain).remote()
        serve.run(application(settings, size, drain, alone), name=APPLICATION)
        scheme = "https" if server.tls_certificate else "http"
        print(f"ready: {scheme}://{server.host}:{port}/v1", file=sys.stderr, flush=True)
        asked.wait()
        ray.get(drain.ask.remote())
        until = time.monotonic() + server.grace_s
        while time.monotonic() < until and ray.get(drain.drained.remote()) < _replicas():
            time.sleep(0.1)
        serve.delete(APPLICATION)
    finally:
        serve.shutdown()
    return 0


def _replicas() -> int:
    from ray import serve

    states = serve.status().applications[APPLICATION].deployments["node"].replica_states
    return sum(number for state, number in states.items() if state == "RUNNING")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", default="1", metavar="N|LEAST-MOST", help="how many nodes, e.g. 1-4 (default 1)")
    parser.add_argument("--cpus", type=float, default=1.0, metavar="N", help="CPUs that each reserves (default 1)")
    parser.add_argument("--gpus", type=float, default=0.0, metavar="N", help="GPUs that each reserves (default 0)")
    parser.add_argument("--address", metavar="ADDRESS", help="a running Ray cluster's (default: start one here)")
    add_settings_flags(parser)
    return parser


def _size(args: argparse.Namespace) -> Size:
    least, dash, most = args.replicas.partition("-")
    try:
        size = Size(int(least), int(most) if dash else int(least), args.cpus, args.gpus)
    except ValueError:
        size = Size(0)
    if not 1 <= size.least <= size.most or size.cpus <= 0 or size.gpus < 0:
        raise OperatorError("--replicas takes a number, or the least and the most of them, like 1-4; CPUs are above 0.")
    return size


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
