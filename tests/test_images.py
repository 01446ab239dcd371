"""The Dockerfile has what the programs import, and `make images` leaves an archive, whoever builds."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import images.__main__ as images

ROOT = Path(__file__).parents[1]
OURS = {"octavo_engine", "octavo_operator"}


def extras_installed(target: str) -> list[str]:
    """The extras of pyproject.toml that the Dockerfile installs for `target`."""
    (stage,) = re.findall(rf"^FROM build AS {target}-libraries\n(.*?)^FROM", _dockerfile() + "FROM", re.M | re.S)
    return re.findall(r"--extra (\w+)", stage)


def _dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def installed(extras: list[str]) -> set[str]:
    """The distributions that come with the extras, and with those in turn."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found: set[str] = set()
    waiting = [Requirement(line) for extra in extras for line in optional[extra]]
    while waiting:
        name = canonical(waiting.pop().name)
        if name not in found:
            found.add(name)
            waiting += needs(name)
    return found


def needs(name: str) -> list[Requirement]:
    try:
        all_of_it = [Requirement(line) for line in requires(name) or []]
    except PackageNotFoundError:
        return []  # for another system
    return [need for need in all_of_it if need.marker is None or need.marker.evaluate({"extra": ""})]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder: Path) -> Iterator[tuple[str, Path]]:
    """Packages of others that are imported below `folder`, wherever in a file."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            yield from ((name.partition(".")[0], path) for name in names)


@pytest.mark.parametrize("target", ["engine", "operator"])
def test_the_image_has_every_package_that_is_imported(target: str) -> None:
    there, who_has = installed(extras_installed(target)), packages_distributions()
    missing = {
        f"{package} ({path.relative_to(ROOT)})"
        for package, path in imported(ROOT / target)
        if package not in sys.stdlib_module_names | OURS
        and not there & {canonical(name) for name in who_has.get(package, [])}
    }
    assert not missing


def test_what_a_bucket_needs_is_tried_while_the_engines_image_is_built() -> None:
    shipped = _dockerfile().partition("FROM python AS engine\n")[2].partition("\nFROM ")[0]
    assert "import certifi, obstore.store" in shipped


def test_docker_too_leaves_the_archive_that_the_check_and_clusters_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n'
        '[ "$1" = save ] && [ "$2" = --output ] && echo archive > "$3"\nexit 0\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images, "ARCHIVES", tmp_path / "images")
    monkeypatch.setattr(sys, "argv", ["images", "operator", "--tag", "1.2"])
    assert images.main() == 0
    assert (tmp_path / "images" / "operator.tar").read_text() == "archive\n"
    said = (tmp_path / "said").read_text().splitlines()
    assert said[-2:] == [
        "build --target operator --tag octavo-operator:1.2 .",
        f"save --output {tmp_path}/images/operator.tar octavo-operator:1.2",
    ]
