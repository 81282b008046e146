"""Where bytes become requests and errors become responses: the one place that knows both.

Before the first byte an error is an HTTP status with OpenAI's error JSON; after it, an event in the stream. This is
also the only broad `except Exception` of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import aiohttp
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestPayloadError

from node.errors import InvalidRequest, NodeError, NotFound, RateLimited, TooLarge
from node.server import replies
from node.server.meter import CLIENT_GONE
from node.server.sse import STREAM, EventStream

BODY_S = 60.0  # a body that trickles in must not hold its connection for ever
LEAST_RETRY_S, MOST_RETRY_S = 1, 120  # above 120 the official clients give up

_log = logging.getLogger(__name__)
_KEPT_HEADERS = (hdrs.ALLOW,)


class MethodNotAllowed(InvalidRequest):
    """A known route, but not with this method."""

    status = 405
    code = "method_not_allowed"


class TooSlow(InvalidRequest):
    """The body did not come in time; clients try again by themselves."""

    status = 408
    code = "request_timeout"
    retryable = True


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body; TooLarge beyond `limit` bytes, whether its length was announced or not."""
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError as error:
        raise TooSlow(f"The request body did not come within {BODY_S:g} seconds.") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large(limit) from error
    except (RequestPayloadError, aiohttp.ClientPayloadError, HttpProcessingError) as error:
        raise InvalidRequest("The request body could not be read to its end.") from error


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response of encoded JSON."""
    return web.Response(body=body, status=status, headers=headers, content_type="application/json", charset="utf-8")


@web.middleware
async def map_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error as something the client can read."""
    try:
        return await handler(request)
    except NodeError as error:
        return await _respond(request, error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kept = {str(name): error.headers[name] for name in _KEPT_HEADERS if name in error.headers}
        return await _respond(request, _from_http(error), kept)
    except ConnectionError:
        stream: EventStream | None = request.get(STREAM)
        if stream is None:
            raise
        _log.debug("reader gone")
        stream.status = CLIENT_GONE
        return stream.response
    except Exception:  # noqa: BLE001  # the last resort: whatever broke, the client gets an answer
        _log.exception("request failed", extra={"method": request.method, "path": request.path})
        return await _respond(request, NodeError("The node failed to handle this request; its log says why."))


async def _respond(
    request: web.Request, error: NodeError, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    _log.info("error answered", extra={"path": request.path, "status": error.status, "code": error.code})
    stream: EventStream | None = request.get(STREAM)
    if stream is None:
        extra = {**(headers or {}), **_retry_header(error)}
        return json_response(replies.error_body(error), error.status, extra)
    try:
        await stream.fail(error)
    except ConnectionError:
        _log.debug("reader gone")
    return stream.response


def _retry_header(error: NodeError) -> dict[str, str]:
    """For refusals that pass: how long to stay away, and what a caller's own limits are."""
    if error.status not in (429, 503):
        return {}
    limits = error.headers if isinstance(error, RateLimited) else {}
    return {hdrs.RETRY_AFTER: str(min(max(error.retry_after or LEAST_RETRY_S, LEAST_RETRY_S), MOST_RETRY_S)), **limits}


def _from_http(error: web.HTTPException) -> NodeError:
    """aiohttp's own refusals in our terms."""
    if error.status == 404:
        return NotFound("There is no such route; the API is under /v1/.")
    if error.status == 405:
        return MethodNotAllowed("This route does not take this method.")
    if error.status == 413:
        return TooLarge("The request body is too large.")
    return InvalidRequest(error.reason or "The request is wrong.")


def too_large(limit: int) -> TooLarge:
    """The refusal of a body over the limit."""
    return TooLarge(
        f"The request body is larger than this node's limit of {limit} bytes.",
        hint="Send less, or raise server.max_body_bytes.",
    )
