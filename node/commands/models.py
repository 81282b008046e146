"""`outpost models`: list, fetch, check and delete model files."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from node.commands.progress import Progress, amount
from node.engine import providers
from node.errors import ModelFileError
from node.models import catalog, convert, weights
from node.models.catalog import Catalog, Entry
from node.models.download import Report
from node.models.pull import pull
from node.tuning import tuned
from node.tuning.tuned import Tuned

_ABOUT = """\
List, fetch, check and delete the files that models are made of.

Weights are kept in the data directory and are usable without a network once they are there. Every file is checked
against the SHA-256 in the catalogue before it gets its name; an interrupted pull goes on where it stopped.
"""
_EXAMPLES = """\
examples:
  outpost models                        what there is, and what is installed
  outpost models pull                   fetch the default model
  outpost models pull gemma-3-270m      fetch another one
  outpost models verify                 hash every installed model again
  outpost models remove gemma-3-270m    free its disk space
  outpost models convert                make an ONNX model of the default one, for engine.kind = "onnx"

To run a model that is not the default, set model.name in node.toml, or OUTPOST_MODEL_NAME. Models of your own go into
catalog.toml in the data directory; `outpost models list` says where that is.
"""

Verbs = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def register(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Add `models` and its actions to the command line."""
    parser = verbs.add_parser(
        "models",
        help="list, fetch, check and delete model files",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, action=None, json=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="every model that can be named (this is also what no ACTION does)")
    pulling = actions.add_parser("pull", help="fetch a model's weights; the default model's without a NAME")
    pulling.add_argument("name", metavar="NAME", nargs="?", help="an id from `outpost models list`")
    verifying = actions.add_parser("verify", help="hash installed weights again; all of them without a NAME")
    verifying.add_argument("name", metavar="NAME", nargs="?", help="an id from `outpost models list`")
    removing = actions.add_parser("remove", help="delete a model's weights")
    removing.add_argument("name", metavar="NAME", help="an id from `outpost models list`")
    converting = actions.add_parser("convert", help="make an ONNX model of a GGUF one; of the default without a NAME")
    converting.add_argument("name", metavar="NAME", nargs="?", help="an id from `outpost models list`")
    converting.add_argument(
        "--for", dest="target", choices=["cpu", "cuda"], help="what will run it (default: cuda where a GPU is seen)"
    )
    for action in (listing, verifying):
        action.add_argument("--json", action="store_true", help="print JSON for other programs")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code: 1 if `verify` finds damage."""
    known = catalog.load()
    match args.action:
        case "pull":
            return _pull(known.find(args.name) if args.name else known.default)
        case "verify":
            return _verify(_to_verify(known, args.name), args.json, tuned.of(args.name) if args.name else tuned.read())
        case "remove":
            return _remove(known.find(args.name))
        case "convert":
            return _convert(known.find(args.name) if args.name else known.default, args.target)
        case _:
            return _list(known, args.json)


def _list(known: Catalog, as_json: bool) -> int:
    if as_json:
        print(json.dumps([_described(entry) for entry in known.entries], indent=2))
    else:
        print(table(known.entries, [_state(entry) for entry in known.entries], _columns()))
        print(f"\n* the default\nWeights: {weights.folder()}\nYour own models: {catalog.own_file()}")
        if (found := tuned.read()) and found.weights:
            size = amount(found.weights.bytes)
            print(f"Tuned: {found.model} is served as {found.weights.form}, {size}: {_variant(found)}")
    return 0


def _variant(found: Tuned) -> str:
    return str(tuned.variant_path(found.weights)) if found.weights else ""


def _described(entry: Entry) -> dict[str, str | int | bool | None]:
    installed, found = weights.installed(entry), tuned.of(entry.id)
    return {
        "id": entry.id,
        "description": entry.description,
        "licence": entry.licence,
        "licence_url": entry.licence_url or None,
        "size": entry.size,
        "sha256": entry.sha256,
        "default": entry.default,
        "installed": installed,
        "path": str(weights.path_of(entry)) if installed else None,
        "tuned_path": _variant(found) or None if found else None,
    }


def _state(entry: Entry) -> str:
    if weights.installed(entry):
        return "installed"
    held = weights.fetched_bytes(entry)
    return f"{100 * held // entry.size} % fetched" if held else "not installed"


def table(entries: Sequence[Entry], states: Sequence[str], width: int) -> str:
    """Models as text: a line of facts each, and its description below, wrapped to the width."""
    rows = [("MODEL", "SIZE", "LICENCE", "STATE")]
    rows += [(entry.id, amount(entry.size), entry.licence, state) for entry, state in zip(entries, states, strict=True)]
    first, second, third = (max(len(row[column]) for row in rows) for column in range(3))
    marks = [" ", *("*" if entry.default else " " for entry in entries)]
    notes = ["", *(entry.description for entry in entries)]
    lines = []
    for mark, (name, size, licence, state), note in zip(marks, rows, notes, strict=True):
        lines.append(f"{mark} {name:<{first}}  {size:>{second}}  {licence:<{third}}  {state}")
        lines += textwrap.wrap(note, max(width - 1, 40), initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _pull(entry: Entry) -> int:
    if weights.installed(entry):
        print(f"{entry.id} is here already: {weights.path_of(entry)}")
        return 0
    where = f" ({entry.licence_url})" if entry.licence_url else ""
    print(f"{entry.id}, {amount(entry.size)}, licence: {entry.licence}{where}", file=sys.stderr)
    with bars() as report:
        path = pull(entry, weights.folder(), report)
    print(f"{entry.id} is installed and checked: {path}")
    return 0


def _to_verify(known: Catalog, name: str | None) -> list[Entry]:
    if name:
        return [known.find(name)]
    return [entry for entry in known.entries if weights.installed(entry)]


def _verify(entries: Sequence[Entry], as_json: bool, made: Tuned | None) -> int:
    problems = {entry.id: _problem(entry) for entry in entries}
    if made and made.weights:
        problems[f"{made.model} as {made.weights.form}"] = _variant_problem(made)
    if as_json:
        found = [{"id": name, "ok": not error, "problem": _said(error)} for name, error in problems.items()]
        print(json.dumps(found, indent=2))
    elif not problems:
        print("No model is installed; fetch one with: outpost models pull", file=sys.stderr)
    else:
        for name, error in problems.items():
            print(f"{name}: {_said(error) or 'whole'}" + (f"\n  {error.hint}" if error and error.hint else ""))
    return 1 if any(problems.values()) else 0


def _said(error: ModelFileError | None) -> str | None:
    return error.message if error else None


def _problem(entry: Entry) -> ModelFileError | None:
    try:
        with bars() as report:
            weights.verify(entry, report)
    except ModelFileError as error:
        return error
    return None


def _variant_problem(made: Tuned) -> ModelFileError | None:
    said = tuned.damage(made)
    return ModelFileError(f"{said}.", hint="`outpost tune --apply` makes it again.") if said else None


def _remove(entry: Entry) -> int:
    freed = weights.remove(entry)
    if tuned.of(entry.id):
        freed += tuned.clear()  # a variant of what is gone is of no use
    print(f"{entry.id} is removed; {amount(freed)} are free again.")
    return 0


def _convert(entry: Entry, named: convert.Target | None) -> int:
    target: convert.Target = named or ("cuda" if providers.seen("cuda") else "cpu")
    source, folder = weights.locate(entry.id), convert.folder_of(entry.id, target)
    if convert.is_current(folder, source, target):
        print(f"{entry.id} is converted for {target} already: {folder}")
        return 0
    with bars("") as report:
        convert.convert(source, folder, target, report)
    print(f"{entry.id} is converted for {target}: {folder}\nServe it with: outpost serve --engine onnx")
    return 0


@contextlib.contextmanager
def bars(unit: str = "B") -> Iterator[Report]:
    """A report that draws one progress bar per stage."""
    with contextlib.ExitStack() as stack:
        current: Progress | None = None

        def report(stage: str, done: int, total: int) -> None:
            nonlocal current
            if current is None or current.label != stage:
                stack.close()
                current = stack.enter_context(Progress(stage, total, unit))
            current.update(done, total)

        yield report


def _columns() -> int:
    return min(shutil.get_terminal_size((80, 24)).columns, 110)
