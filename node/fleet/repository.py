"""One way to a fleet's static files, be they behind HTTPS, behind HTTP where that was allowed, or in a folder.

It is TUF's `FetcherInterface`: bytes come bounded, and what they are worth is decided elsewhere. A folder (a USB stick)
is not a second path, only another address.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import IO

from tuf.api.exceptions import DownloadError, DownloadHTTPError
from tuf.ngclient import FetcherInterface

from node import __version__
from node.errors import SettingsError
from node.settings import Fleet

_TIMEOUT_S = 30.0
_WHOLE_S = 120.0  # for all of one small file: somebody who drips bytes is left
_CHUNK = 64 << 10
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class PageInstead(DownloadError):
    """A web page came where metadata was asked for."""


class Repository(FetcherInterface):
    """The files below one address. `requests` and `received` count what was asked for and what came."""

    def __init__(self, settings: Fleet, *, check_time: bool = True) -> None:
        self.base = address(settings)
        self.requests = 0
        self.received = 0
        self._settings = settings
        self._check_time = check_time

    def _fetch(self, url: str) -> Iterator[bytes]:
        """TUF's one method; raises DownloadError of some kind."""
        self.requests += 1
        scheme = urllib.parse.urlsplit(url).scheme
        pieces = _read_file(url) if scheme == "file" else self._read_web(url)
        for piece in _first_is_no_page(pieces, url):
            self.received += len(piece)
            yield piece

    def _read_web(self, url: str) -> Iterator[bytes]:
        request = urllib.request.Request(url, headers={"User-Agent": f"outpost/{__version__}"})
        until = time.monotonic() + _WHOLE_S
        with _translated(url), self._opener(url).open(request, timeout=_TIMEOUT_S) as response:
            if response.status != 200:
                raise DownloadHTTPError(f"{url}: the server answered {response.status}", response.status)
            if response.headers.get_content_type() == "text/html":
                raise PageInstead(url)
            while piece := response.read1(_CHUNK):
                yield piece
                if time.monotonic() > until:
                    raise DownloadError(f"{url} takes longer than {_WHOLE_S:g} s")

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.HTTPSHandler(context=tls_context(self._settings, check_time=self._check_time)),
            _CarefulRedirects(self._settings),
        ]
        if urllib.parse.urlsplit(url).hostname in _LOOPBACK:  # this machine: no proxy knows it
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where `fleet.url` might point as well."""

    def __init__(self, settings: Fleet) -> None:
        self._settings = settings

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if reason := why_not(newurl, allow_http=self._settings.allow_http):
            fp.close()  # nobody else does once an error leaves here
            raise DownloadError(f"the server redirects to where nothing is fetched from: {reason}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]  # HTTPMessage


def address(settings: Fleet) -> str:
    """`fleet.url` as a URL that ends with a slash; raises SettingsError where nothing may be fetched from there."""
    return base_of(settings.url, allow_http=settings.allow_http, key="fleet.url")


def base_of(url: str, *, allow_http: bool, key: str) -> str:
    """A setting as a URL that ends with a slash; a path becomes a file: URL. Raises SettingsError."""
    if url.startswith("file:"):
        url = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    if "://" not in url:
        return Path(url).expanduser().absolute().as_uri().rstrip("/") + "/"
    if reason := why_not(url, allow_http=allow_http):
        raise SettingsError(f"{key} cannot be used: {reason}.")
    return url.rstrip("/") + "/"


def why_not(url: str, *, allow_http: bool) -> str:
    """Why nothing may be fetched from that address; empty where it may."""
    if not url.isascii() or any(character <= " " for character in url):
        return f"`{url!a}` holds characters that a URL must escape"
    try:
        split = urllib.parse.urlsplit(url)
        _ = split.port
    except ValueError as error:
        return f"`{url}` is no address ({error})"
    if not split.hostname or "@" in split.netloc:
        return f"`{url}` must name a host, and no user"
    if split.scheme == "http" and not (allow_http or split.hostname in _LOOPBACK):
        return f"`{url}` is plain http:, which fleet.allow_http must allow first"
    return "" if split.scheme in ("https", "http") else f"`{url}` is neither https: nor a folder"


def tls_context(settings: Fleet, *, check_time: bool = True) -> ssl.SSLContext:
    """How the repository's server is known. Raises SettingsError.

    Without `check_time` certificates may be expired or not valid yet, for metadata while this machine has no clock:
    those who sign must be the right ones all the same, and what they serve is signed besides.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"Cannot use fleet.ca_file {settings.ca_file}: {error}.") from error
    if not check_time:
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    return context


def _read_file(url: str) -> Iterator[bytes]:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe in its place must not hang us
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DownloadHTTPError(f"there is no {path}", 404) from error
    except OSError as error:
        raise DownloadError(f"cannot read {path}: {error.strerror}") from error
    with open(handle, "rb", buffering=0) as file, _translated(url):
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise DownloadError(f"{path} is no file")
        while piece := file.read(_CHUNK):
            yield piece


def _first_is_no_page(pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
    """Nothing that a fleet serves begins with `<`; what stands between a node and the network does."""
    for count, piece in enumerate(pieces):
        if not count and piece.lstrip()[:1] == b"<":
            raise PageInstead(url)
        yield piece


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Foreign errors in TUF's words."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadHTTPError(f"{url}: the server answered {error.code}", error.code) from error
    except DownloadError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise DownloadError(f"the certificate cannot be trusted: {reason.verify_message}") from error
        raise DownloadError(str(reason) or type(reason).__name__) from error
