"""The chat page at `/`: a handful of static files, with headers under which a browser runs nothing but them.

The files are read once, when the application is built; a request can name nothing that is not in the table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import hdrs, web

_FOLDER = Path(__file__).with_name("page")

FILES: Mapping[str, str] = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(
        (
            "app.js",
            "api.js",
            "around.js",
            "frame.js",
            "link.js",
            "markdown.js",
            "meter.js",
            "sse.js",
            "turn.js",
            "words.js",
        ),
        "text/javascript; charset=utf-8",
    ),
}

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # The page never parses HTML; with this, Chromium refuses even an innerHTML written by mistake.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS: Mapping[str, str] = {
    hdrs.CACHE_CONTROL: "no-cache",
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def add_page(app: web.Application) -> None:
    """Serve the page at `/` and its files at `/page/{file}`, to GET and HEAD."""
    for name in FILES:
        app.router.add_get("/" if name == "index.html" else f"/page/{name}", _handler(name))


def _handler(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = (_FOLDER / name).read_bytes()
    tag = hashlib.sha256(body).hexdigest()[:32]
    headers = {**_HEADERS, hdrs.ETAG: f'"{tag}"'}
    full = {**headers, hdrs.CONTENT_TYPE: FILES[name]}

    async def handle(request: web.Request) -> web.Response:
        if any(known.value in (tag, "*") for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers=full)

    return handle
