"""Documents that lag fail here: settings, verbs, routes, links and commands of the README."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from node.cli import VERBS, build_parser
from node.layers import describe, load
from node.server.app import create_app
from tests.support.service import scripted

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


def test_the_table_of_settings_is_the_settings() -> None:
    rows = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| (?:`(.*?)`)? ?\| (.*?) \|$", README, re.MULTILINE)
    assert rows == describe()


def test_every_route_stands_in_the_readme() -> None:
    app = create_app(load(environment={}), scripted()[0])
    for resource in app.router.resources():
        path = resource.canonical
        if not path.startswith("/page/"):
            assert f"{path}`" in README, path


def test_nobody_is_told_to_install_another_project_of_that_name() -> None:
    """On PyPI `outpost` belongs to others: extras come from the source tree, by tools/install.py."""
    told = [ROOT / "README.md", *(ROOT / "node").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    assert not [str(path) for path in told if re.search(r"pip install '?outpost", path.read_text())]


def test_every_verb_stands_in_the_readme() -> None:
    for verb in VERBS:
        assert f"outpost {verb}" in README, verb


def test_every_outpost_command_in_the_readme_parses() -> None:
    commands = re.findall(rf"outpost ((?:{'|'.join(VERBS)})\b[^\n`]*)", "\n".join(BLOCKS))
    assert len(commands) >= 6
    parser = build_parser()
    for command in commands:
        parser.parse_args(shlex.split(command))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / document).read_text()):
        assert (ROOT / target).exists(), target


def test_the_map_of_rooms_names_every_room() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for room in (path.parent.name for path in (ROOT / "node").glob("*/__init__.py")):
        assert f"{room}/" in contributing, room
    for module in (ROOT / "node").glob("*.py"):
        if not module.name.startswith("__"):
            assert module.name in contributing, module.name
