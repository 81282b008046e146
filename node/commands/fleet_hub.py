"""Reports of nodes, from a hub or a file."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from node.errors import OperatorError, Unreachable
from node.fleet import progress
from node.fleet.progress import Report
from node.fleet.repository import why_not

_TIMEOUT_S = 30.0
_MOST_BYTES = 64 << 20
_MOST_PAGES = 10_000


def reports(args: argparse.Namespace) -> list[Report]:
    """What nodes reported, oldest first; raises OperatorError, Unreachable."""
    if args.reports is not None:
        return from_file(args.reports)
    if not args.hub:
        raise OperatorError("Where do the nodes report to?", hint="--hub URL, or --reports FILE")
    return from_hub(args.hub, args.api_key or os.environ.get("OUTPOST_HUB_KEY", ""))


def from_file(path: Path) -> list[Report]:
    """A report a line; what is none is passed over. Raises OperatorError."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError as error:
        raise OperatorError(f"Cannot read {path}: {error.strerror}.") from error
    return [report for line in lines if (report := progress.read(line)) is not None]


def from_hub(url: str, key: str) -> list[Report]:
    """All that the hub has; raises OperatorError, Unreachable."""
    if reason := why_not(url, allow_http=False):
        raise OperatorError(f"--hub cannot be used: {reason}.")
    found: list[Report] = []
    after = 0
    for _ in range(_MOST_PAGES):
        page = _page(f"{url.rstrip('/').removesuffix('/v1')}/v1/hub/reports?after={after}", key)
        rows = page.get("data", [])
        for row in rows:
            after = max(after, int(row["number"]))
            if (report := progress.read(msgspec.json.encode(row["report"]))) is not None:
                # Who sent it counts, not who it says it is from.
                found.append(msgspec.structs.replace(report, node=str(row["node"])))
        if not rows or not page.get("has_more"):
            break
    return found


def _page(url: str, key: str) -> dict[str, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    handlers: list[urllib.request.BaseHandler] = []
    if urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost"):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            page = json.loads(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(
                f"The hub answered {error.code} to {url}.", hint="Is it a hub, and is the key right?"
            ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"The hub cannot be reached: {error}.") from error
    if not isinstance(page, dict):
        raise Unreachable(f"{url} did not answer as a hub does.")
    return page
