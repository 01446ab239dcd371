"""The API paths of a kind's objects, by any name of the kind that kubectl accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2

_DISCOVERY = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}


@dataclass(frozen=True)
class Kind:
    """One resource of one version of a group of the API."""

    prefix: str
    """Such as /api/v1 and /apis/apps/v1."""
    resource: str
    """Plural, as in paths."""
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of the object `name`, or of all in the namespace; without namespaces, of all there are."""
        scope = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{self.prefix}{scope}/{self.resource}" + (f"/{name}" if name else "")


def served_kinds(http: httpx2.Client) -> dict[str, Kind]:
    """Return all kinds by plural, singular and short names, with and without their group.

    Where two have one, the first.
    """
    found: dict[str, Kind] = {}
    for root in ("/api", "/apis"):
        for group in http.get(root, headers=_DISCOVERY).raise_for_status().json()["items"]:
            name = group["metadata"].get("name", "")
            for version in group["versions"]:
                prefix = "/".join(part for part in (root, name, version["version"]) if part)
                for resource in version.get("resources", []):
                    kind = Kind(prefix, resource["resource"], resource["scope"] == "Namespaced")
                    for each in _names(resource):
                        found.setdefault(each, kind)
                        found.setdefault(f"{each}.{name}", kind)
    return found


def _names(resource: dict[str, Any]) -> list[str]:
    return [resource["resource"], resource["singularResource"], *resource.get("shortNames", [])]
