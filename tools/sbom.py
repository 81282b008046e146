"""A CycloneDX bill of materials of the installed program: what it depends on, and the model files that it knows.

    .venv/bin/python tools/sbom.py > outpost.cdx.json

Made from what is really installed, with nothing but the standard library: everything that `outpost` requires without an
extra (`--extra NAME` adds one), what that requires, and so on. The same environment gives the same document to the byte
(SOURCE_DATE_EPOCH is its time; without it there is none).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def document(root: str, extras: Sequence[str] = (), catalog: Path | None = None) -> dict[str, Any]:
    """The whole bill, for the installed distribution `root`; raises PackageNotFoundError."""
    known = closure(root, extras)
    components = [component(known[name]) for name in sorted(known) if name != canonical(root)]
    components += models(catalog) if catalog else []
    made: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component(known[canonical(root)]), "type": "application"}},
        "components": components,
        "dependencies": [dependency(known[name], known, extras) for name in sorted(known)],
    }
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        when = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
        made["metadata"]["timestamp"] = when.isoformat(timespec="seconds").replace("+00:00", "Z")
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True))
    return {**made, "serialNumber": f"urn:uuid:{serial}"}


def closure(root: str, extras: Sequence[str] = ()) -> dict[str, metadata.Distribution]:
    """Every installed distribution that `root` needs, itself included, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(root, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if canonical(name) in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not found:
                raise
            continue  # for another system, or of an extra that is not installed
        found[canonical(name)] = distribution
        waiting += [(needed, frozenset()) for needed in requirements(distribution, wanted)]
    return found


def requirements(distribution: metadata.Distribution, extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names that it requires, here and on other systems; of extras only those that are wanted."""
    for line in distribution.requires or ():
        extra = _EXTRA.search(line.partition(";")[2])
        if extra is None or extra[1] in extras:
            name = _NAME.match(line)
            assert name is not None, line
            yield name[0]


def component(distribution: metadata.Distribution) -> dict[str, Any]:
    """One distribution."""
    name, version = canonical(distribution.metadata["Name"]), distribution.version
    told: dict[str, Any] = {"type": "library", "bom-ref": purl(distribution), "name": name, "version": version}
    told["purl"] = purl(distribution)
    if summary := distribution.metadata.get("Summary"):
        told["description"] = summary
    if licence := licence_of(distribution):
        told["licenses"] = [licence]
    return told


def dependency(
    distribution: metadata.Distribution, known: dict[str, metadata.Distribution], extras: Sequence[str] = ()
) -> dict[str, Any]:
    """What it stands on; nothing but the program itself has extras that were asked for."""
    names = {canonical(name) for name in requirements(distribution, frozenset(extras))}
    return {"ref": purl(distribution), "dependsOn": sorted(purl(known[name]) for name in names if name in known)}


def licence_of(distribution: metadata.Distribution) -> dict[str, Any] | None:
    """An SPDX expression where it has one, else what it calls its licence."""
    told = distribution.metadata
    if expression := told.get("License-Expression"):
        return {"expression": expression}
    names = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
    name = names[0] if names else (told.get("License") or "").strip().splitlines()[0:1]
    text = name if isinstance(name, str) else "".join(name)
    return {"license": {"name": text[:200]}} if text else None


def models(catalog: Path) -> list[dict[str, Any]]:
    """The model files that the program fetches by name; what it does not ship, it promises by hash."""
    with catalog.open("rb") as file:
        entries = tomllib.load(file).get("models", [])
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": f"model:{entry['id']}",
            "name": entry["id"],
            "licenses": [{"license": {"name": entry["licence"]}}],
            "hashes": [{"alg": "SHA-256", "content": entry["sha256"]}],
        }
        for entry in entries
    ]


def purl(distribution: metadata.Distribution) -> str:
    """Its package URL."""
    return f"pkg:pypi/{canonical(distribution.metadata['Name'])}@{distribution.version}"


def canonical(name: str) -> str:
    """As PyPI spells names in addresses."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it."""
    parser = argparse.ArgumentParser(description="A CycloneDX bill of materials of the installed program.")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help="with what this extra installs")
    args = parser.parse_args(arguments)
    json.dump(document("outpost", args.extra, ROOT / "models" / "catalog.toml"), sys.stdout, indent=2, sort_keys=True)
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
