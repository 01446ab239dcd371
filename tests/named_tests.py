"""Finds the tests that lists name, such as the list of tests for each promise of the API."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def functions_of(module: str) -> frozenset[str]:
    """Return the functions of a module of tests, by their first lines: to parse 70 modules takes much longer.

    `module` is its file's name after that of a folder in tests/, such as engine/test_client.py; it may be in a folder
    within that one.
    """
    folder, name = module.split("/")
    (path,) = (TESTS / folder).rglob(name)
    return frozenset(re.findall(r"^(?:async )?def (\w+)\(", path.read_text(), re.MULTILINE))
