"""A software bill of materials (CycloneDX) of an image: the Debian and Python packages that its archive really has."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_DEBIAN = "var/lib/dpkg/status"
_PYTHON = re.compile(r".*/site-packages/[^/]+\.dist-info/METADATA")
_REMOVED = ".wh."
"""The prefix of names of files and folders that a layer removes (OCI image specification: whiteouts)."""
_REPLACED = ".wh..wh..opq"
"""The file with which a layer removes everything in a folder that the layers below it have."""


def write(archive: Path, name: str, version: str) -> Path:
    """Write the bill of materials of an archive in the format of `docker save` beside the archive; returns its path."""
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=name)
    bom = Bom(components=components(archive))
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)
    path = archive.with_suffix(".cdx.json")
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
    return path


def components(archive: Path) -> list[Component]:
    """Return the packages in an image's archive, sorted by name."""
    files = _files(archive)
    found = [_python(content) for path, content in files.items() if path != _DEBIAN]
    found += _debian(files.get(_DEBIAN, b"").decode())
    return sorted(found, key=lambda each: (each.name, each.version or ""))


def _files(archive: Path) -> dict[str, bytes]:
    """Return the files that name packages, as they are when all layers of the image are applied."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as saved:
        manifest = saved.extractfile("manifest.json")
        layers = json.load(manifest)[0]["Layers"] if manifest is not None else []
        for layer in layers:
            with tarfile.open(fileobj=saved.extractfile(layer)) as changes:
                _change(found, list(_changes(changes)))
    return found


def _change(found: dict[str, bytes], changes: Sequence[tuple[str, bytes | None]]) -> None:
    """Apply a layer to the files: its removals first, which concern only files of the layers below it."""
    removed = [path for path, content in changes if content is None]
    for gone in [each for each in found if any(path == "." or f"{each}/".startswith(f"{path}/") for path in removed)]:
        del found[gone]
    found.update({path: content for path, content in changes if content is not None})


def _changes(layer: tarfile.TarFile) -> Iterator[tuple[str, bytes | None]]:
    """Yield the files of a layer that name packages, with their content, and the paths that it removes, with None."""
    for member in layer:
        path = PurePosixPath(member.name.removeprefix("./"))
        if path.name == _REPLACED:
            yield str(path.parent), None
        elif path.name.startswith(_REMOVED):
            yield str(path.parent / path.name.removeprefix(_REMOVED)), None
        elif member.isfile() and (str(path) == _DEBIAN or _PYTHON.fullmatch(str(path))):
            file = layer.extractfile(member)
            yield str(path), file.read() if file is not None else b""


def _python(metadata: bytes) -> Component:
    read = BytesParser().parsebytes(metadata, headersonly=True)
    name = re.sub(r"[-_.]+", "-", str(read["Name"])).lower()
    return _library("pypi", name, str(read["Version"]))


def _debian(status: str) -> Iterator[Component]:
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield _library("deb", fields["Package"], fields["Version"], "debian", fields["Architecture"])


def _library(kind: str, name: str, version: str, namespace: str | None = None, arch: str | None = None) -> Component:
    purl = PackageURL(kind, namespace, name, version, qualifiers={"arch": arch} if arch else None)
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))
