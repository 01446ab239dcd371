"""core/ stays small: the number of its lines and of its classes' methods, and imports without circles."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import octavo_engine.core

ROOT = Path(octavo_engine.core.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MOST_LINES = 2_500
"""Of all files together, comments and blank lines included."""
MOST_METHODS = 20
MOST_LINES_OF_A_FUNCTION = 40


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("octavo_engine", "core", *parts)).removesuffix(".__init__")


def imports_of(file: Path) -> set[str]:
    """The modules of core that a file imports, those for type checkers alone included."""
    modules = {module_of(other) for other in FILES}
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= names or {node.module} & modules
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return found - {module_of(file)}


def test_core_has_no_more_lines_than_it_may() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FILES) <= MOST_LINES


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_classes_and_functions_are_short(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            assert len(methods) <= MOST_METHODS, node.name
        elif isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MOST_LINES_OF_A_FUNCTION, node.name


def test_no_module_of_core_imports_itself_through_others() -> None:
    graph = {module_of(file): imports_of(file) for file in FILES}
    assert len(graph["octavo_engine.core.scheduler"]) > 5, "imports are found"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))
