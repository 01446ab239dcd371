"""The volumes of the engine's container, the only places it can write to: its root file system is read-only."""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.names import cache_claim
from octavo_operator.api.resource import LLMService
from octavo_operator.api.source import ModelSource

USER = 10001
HOME = "/home/octavo"
LINK = f"{HOME}/model"
"""The link to the fetched model, whose path in the cache varies."""
CACHE = "/cache"
NODE_FOLDER = "octavo-cache"
"""The folder below `hostPath`, with a folder for each namespace: only that one is mounted, and given to the engine's
user.

Files that pods of one namespace write, code among them, are never read by those of another. No pod can write in the
folders above, so no symbolic link of a pod's can lead a mount elsewhere.
"""
WEIGHTS = "/models"
API_KEYS = "/etc/octavo/api-keys"
ADAPTERS = "/adapters"
"""The folder with a folder for each claim and image with adapters."""
ADAPTER_FILE = f"{HOME}/adapters.json"
"""Written by the container that fetches adapters, read by the engine."""


@dataclass(frozen=True)
class Mount:
    """One volume of the pod and its place in the engine's container."""

    name: str
    path: str
    source: dict[str, Any]
    read_only: bool = False

    def volume(self) -> dict[str, Any]:
        """Return the entry for the pod's `volumes`."""
        return {"name": self.name, **self.source}

    def volume_mount(self) -> dict[str, Any]:
        """Return the entry for the container's `volumeMounts`."""
        mount: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        if self.read_only:
            mount["readOnly"] = True
        return mount


def mounts(llmservice: LLMService) -> list[Mount]:
    """Return all mounts of the engine's container."""
    spec = llmservice.spec
    found = [
        Mount("tmp", "/tmp", {"emptyDir": {}}),  # noqa: S108 - a path in the container
        Mount("home", HOME, {"emptyDir": {}}),
        Mount("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": spec.cache.shared_memory_size}}),  # noqa: S108
        Mount("cache", CACHE, _cache(llmservice)),
    ]
    if weights := _weights(spec.model.source):
        found.append(weights)
    found += _adapters(spec)
    if spec.auth is not None:
        secret = {"secretName": spec.auth.api_keys_secret_ref.name, "defaultMode": 0o440}
        found.append(Mount("api-keys", API_KEYS, {"secret": secret}, read_only=True))
    return found


def _cache(llmservice: LLMService) -> dict[str, Any]:
    cache = llmservice.spec.cache
    if cache.type == "PersistentVolumeClaim":
        return {"persistentVolumeClaim": {"claimName": cache_claim(llmservice.name)}}
    if cache.type == "HostPath":
        path = posixpath.join(str(cache.host_path), NODE_FOLDER, llmservice.namespace)
        return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {"sizeLimit": cache.size} if cache.size else {}}


def _weights(source: ModelSource) -> Mount | None:
    volume = _volume(source)
    return Mount("weights", WEIGHTS, volume, read_only=True) if volume else None


def _volume(source: ModelSource) -> dict[str, Any] | None:
    """Return the volume that holds a source's files; None where they are fetched."""
    if claim := source.persistent_volume_claim:
        return {"persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}}
    if image := source.image:
        return {"image": {"reference": image.reference, "pullPolicy": image.pull_policy}}
    return None


def _adapters(spec: LLMServiceSpec) -> list[Mount]:
    """Return the volumes of adapters, each once."""
    volumes = [volume for volume in (_volume(adapter.source) for adapter in spec.adapters) if volume]
    found = {_volume_name(volume): volume for volume in volumes}
    return [Mount(name, f"{ADAPTERS}/{name}", found[name], read_only=True) for name in sorted(found)]


def _volume_name(volume: dict[str, Any]) -> str:
    """Return a volume's name, made of a hash: names of claims and images may be longer than a volume's."""
    return f"adapters-{hashlib.sha256(json.dumps(volume, sort_keys=True).encode()).hexdigest()[:10]}"


def adapter_volume(source: ModelSource) -> str | None:
    """Return the name of the volume that an adapter lies on; None where it is fetched."""
    volume = _volume(source)
    return _volume_name(volume) if volume else None


def adapter_path(source: ModelSource) -> str | None:
    """Return the path in the container of an adapter on a volume; None if it is fetched."""
    name, place = adapter_volume(source), source.persistent_volume_claim or source.image
    if name is None or place is None:
        return None
    return posixpath.normpath(posixpath.join(ADAPTERS, name, place.path.lstrip("/")))


def weights_path(path: str) -> str:
    """Return the path in the container of `path`, which is relative to the volume of weights."""
    return posixpath.normpath(posixpath.join(WEIGHTS, path.lstrip("/")))
