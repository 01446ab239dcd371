"""Folders of this machine in the place of a pod's volumes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_operator.api.names import is_dns_label
from octavo_operator.local.errors import LocalError
from octavo_operator.render.adapters import CREDENTIALS_VOLUME, LIST_VOLUME

_MADE_HERE = ("cache", LIST_VOLUME, CREDENTIALS_VOLUME)
"""Volumes whose folders are empty at first here, whatever they are in a cluster."""


def make_folders(volumes: Sequence[Mapping[str, Any]], root: Path, given: Mapping[str, Path]) -> dict[str, Path]:
    """Return a folder for each volume: the one given, or a new one for what is empty at first anyway."""
    names = {volume["name"] for volume in volumes}
    if unknown := set(given) - names:
        raise LocalError(f"--volume {min(unknown)}: the pod has no such volume; it has {', '.join(sorted(names))}")
    folders = {}
    for volume in volumes:
        name = volume["name"]
        if not is_dns_label(name):
            raise LocalError(f"spec.podTemplate has a volume {name!r}, which is not a valid name of a volume")
        if name in folders:
            raise LocalError(f"spec.podTemplate has two volumes called {name}")
        if name in given:
            folders[name] = given[name]
        elif set(volume) <= {"name", "emptyDir"} or name in _MADE_HERE:  # of no kind: an emptyDir, as in Kubernetes
            folders[name] = root / name
            folders[name].mkdir()
        else:
            (kind,) = set(volume) - {"name"}
            raise LocalError(
                f"the volume {name} is a {kind} ({json.dumps(volume[kind])}), which exists only in a cluster; give "
                f"--volume {name}=DIR"
            )
    return folders


def parse_volumes(values: Sequence[str]) -> dict[str, Path]:
    """Return volumes by name from NAME=DIR; LocalError if one is written otherwise or is no folder."""
    volumes = {}
    for value in values:
        name, _, folder = value.partition("=")
        if not folder or not Path(folder).is_dir():
            raise LocalError(f"--volume {value}: write NAME=DIR, where DIR is a folder of this machine")
        volumes[name] = Path(folder).resolve()
    return volumes
