"""Bytes from a web server or a file of this machine into a Partial.

An interrupted download goes on where it stopped: at once, a few times over, and again in a later run. The request is
`Range: bytes=N-` with `If-Range`, so a server whose file has changed sends all of it (200) and we begin anew. A server
that knows no ranges does the same. What a server says about lengths is never believed further than the Partial's limit.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import IO

from node import __version__
from node.errors import PullError
from node.models import sources
from node.models.partial import CHUNK, OverLimit, Partial

Report = Callable[[str, int, int], None]
"""Called with the stage, its bytes done and its bytes in all (0 where nobody knows)."""

_TIMEOUT_S = 30.0
_PAUSES_S = (1.0, 2.0, 4.0)
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")
FETCHING = "fetching"


def copy(source: sources.LocalFile, partial: Partial, report: Report) -> None:
    """Append a file of this machine; raises PullError if it cannot be read."""
    partial.rewind()
    try:
        file = source.path.open("rb")
    except OSError as error:
        raise PullError(f"Cannot read {source.path}: {error.strerror}.") from error
    with file:
        total = source.path.stat().st_size
        while chunk := file.read(CHUNK):
            partial.write(chunk)
            report(FETCHING, partial.position - partial.start, total)


def fetch(
    source: sources.Web, partial: Partial, report: Report, *, pause: Callable[[float], None] = time.sleep
) -> None:
    """Append the rest of a web file; raises PullError once it is refused, or interrupted again and again."""
    failures = 0
    while True:
        before = partial.position
        trouble = _attempt(source.url, partial, report)
        if trouble is None:
            return
        failures = 1 if partial.position > before else failures + 1
        if failures > len(_PAUSES_S):
            raise PullError(
                f"The download of {_shown(source.url)} stopped after {partial.position:,} bytes: {trouble}.",
                hint="Run the same command again: it goes on from there.",
            )
        pause(_PAUSES_S[failures - 1])


def _attempt(url: str, partial: Partial, report: Report) -> str | None:
    """One request; returns None when the source is whole, else why it stopped."""
    held = partial.position - partial.start
    request = urllib.request.Request(url, headers={"User-Agent": f"outpost/{__version__}"})
    if held:
        request.add_header("Range", f"bytes={held}-")
        if partial.validator:
            request.add_header("If-Range", partial.validator)
    try:
        response = _opener(url).open(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            return _refused(url, error, partial)
    except (OSError, http.client.HTTPException) as error:
        return _broken(url, error)
    with response:
        if trouble := _take_up(url, response, partial, held):
            return trouble
        return _receive(response, partial, report)


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_CarefulRedirects()]
    if urllib.parse.urlsplit(url).scheme == "http":  # this machine: no proxy knows it
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where a catalogue might point as well."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        try:
            sources.checked_url(newurl)
        except ValueError as error:
            fp.close()  # nobody else does once an error leaves here
            raise PullError(f"The server redirects to where nothing is fetched from: {error}.") from error
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]  # HTTPMessage


def _refused(url: str, error: urllib.error.HTTPError, partial: Partial) -> str | None:
    error.close()
    held = partial.position - partial.start
    if error.code == 416 and held:
        if _content_range(error.headers)[1] == held:
            return None  # the last run had all of it, and was stopped before it knew
        partial.rewind()
        return "the server's file is shorter than what was fetched before"
    trouble = f"the server answered {error.code} {http.client.responses.get(error.code, '')}".rstrip()
    if error.code in _PASSING:
        return trouble
    raise PullError(f"Cannot fetch {_shown(url)}: {trouble}.") from error


def _broken(url: str, error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise PullError(
            f"The certificate of {_shown(url)} cannot be trusted: {reason.verify_message}.",
            hint="A wrong clock on this machine is a common cause.",
        ) from error
    return _said(reason)


def _take_up(url: str, response: http.client.HTTPResponse, partial: Partial, held: int) -> str | None:
    """Bring the Partial to where this answer begins; returns what speaks against going on."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise PullError(f"Cannot fetch {_shown(url)}: the server sends it encoded, although it was not asked to.")
    match response.status:
        case 200:
            partial.rewind()
        case 206 if _content_range(response.headers)[0] == held:
            pass
        case 206:
            partial.rewind()
            return "the server sent another range than it was asked for"
        case _:
            raise PullError(f"Cannot fetch {_shown(url)}: the server answered {response.status} without the file.")
    partial.name_source(_validator(response.headers))
    return None


def _receive(response: http.client.HTTPResponse, partial: Partial, report: Report) -> str | None:
    left = _content_length(response.headers)
    if left is not None and left > partial.room:
        raise OverLimit(partial.limit)
    total = partial.position - partial.start + left if left is not None else 0
    while left != 0:
        try:
            chunk = response.read1(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            return _said(error)
        if not chunk:
            return None if left is None else f"the connection closed {left:,} bytes too early"
        chunk = chunk if left is None else chunk[:left]
        partial.write(chunk)
        left = None if left is None else left - len(chunk)
        report(FETCHING, partial.position - partial.start, total)
    return None


def _content_length(headers: Message) -> int | None:
    text = headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """First byte and length of the whole file, where the header says so."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "")[:100])
    first, whole = found.groups() if found else (None, None)
    return (int(first) if first else None, int(whole) if whole and whole != "*" else None)


def _validator(headers: Message) -> str:
    """What If-Range may name: a strong ETag, else the date."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified", "")


def _said(error: object) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text[:200].rstrip(".")


def _shown(url: str) -> str:
    """The URL without what may be secret in it."""
    split = urllib.parse.urlsplit(url)
    return f"{split.scheme}://{split.netloc}{split.path}"
