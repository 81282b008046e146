"""The house rules that a machine can check: sizes, tests beside modules, no machine's own names."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for path in (ROOT / "node").rglob("*.py"))
# Packages hold a docstring, entry points only call the command line.
UNTESTED = {"__init__.py", "__main__.py"}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(path: Path) -> list[int]:
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_and_no_function_is_too_big(path: Path) -> None:
    assert lines(path) <= 400
    assert max(functions(path), default=0) <= 60
    assert ast.get_docstring(ast.parse(path.read_text())), "every module says what it is"


def test_the_median_function_is_short() -> None:
    assert statistics.median(length for path in MODULES for length in functions(path)) <= 10


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name not in UNTESTED], ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_module_has_its_tests(path: Path) -> None:
    relative = path.relative_to(ROOT / "node")
    assert (ROOT / "tests" / relative.parent / f"test_{relative.name}").exists()


def test_there_are_at_least_as_many_lines_of_tests_as_of_code() -> None:
    assert sum(map(lines, (ROOT / "tests").rglob("*.py"))) >= sum(map(lines, MODULES))


def test_packages_hold_a_docstring_and_no_imports() -> None:
    for path in (ROOT / "node").glob("*/__init__.py"):
        body = ast.parse(path.read_text()).body
        assert len(body) == 1, path
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_machine_path_stands_in_the_tree() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    own = re.compile("/(work|farm|home/[a-z]+)/(main|shared|node)|" + "\\." + "library/")
    for name in tracked.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".toml", ".md", ".sh", ".js", ".html", ".css", ""} and path.is_file():
            assert not own.search(path.read_text(errors="ignore")), name
