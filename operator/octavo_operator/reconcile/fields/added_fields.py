"""Finds fields that other managers have added in parts of a child that are entirely the operator's. Pure.

Server-side apply leaves alone what a manifest does not say. So a `minAvailable` in a PodDisruptionBudget, a
`nodeSelector` in a pod template, or a `sampleLimit` in a ServiceMonitor would stay forever. The managed fields tell
them from defaults and from what admission webhooks add: those have no manager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from octavo_operator.api.names import FIELD_MANAGER
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.fields.ownership import is_item

Path = tuple[str | int, ...]
"""A path in an object: keys of mappings, indexes of lists."""

_SPEC: tuple[tuple[str, ...], ...] = (("spec",),)
_OURS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Deployment": (("spec", "template", "spec"),),
    "Service": (
        ("spec", "publishNotReadyAddresses"),
        ("spec", "internalTrafficPolicy"),
        ("metadata", "labels", "service.kubernetes.io/service-proxy-name"),
    ),
    "PodDisruptionBudget": _SPEC,
    "NetworkPolicy": _SPEC,
    "HorizontalPodAutoscaler": _SPEC,
    "ServiceMonitor": _SPEC,
    "PodMonitor": _SPEC,
    "ScaledObject": _SPEC,
}
"""The parts of each kind in which every field is the operator's.

A Deployment's number of replicas is an autoscaler's, and the annotations of its pod template are kubectl's, which
restarts pods by them. Of a Service it is what keeps requests from the ready pods to which its EndpointSlices lead:
the policy Local serves only nodes with a pod of the model, and a Service that names a proxy of its own is ignored by
kube-proxy. What else a Service has, such as its session affinity, is the administrator's.
"""

_DEFAULTS: Mapping[tuple[str, ...], str] = {("spec", "internalTrafficPolicy"): "Cluster"}
"""The values that the API server sets where a manifest says nothing: a client that creates the object, as a restore
from a backup does, owns them too, and what is removed is there again at once."""

_OURS_WHERE_REFUSED = {**_OURS, "Service": _SPEC}
"""A Service that is no longer of type LoadBalancer may not have the fields of that type, such as source ranges."""


def added_fields(manifest: Mapping[str, Any], live: Mapping[str, Any], refused: bool = False) -> list[Path]:
    """Return the paths of `live` in our parts that another manager has set and `manifest` does not contain.

    `refused`: the API server refuses `manifest` beside them, so that also those go that would be left alone else.
    """
    roots = (_OURS_WHERE_REFUSED if refused else _OURS).get(manifest["kind"], ())
    found = [path for fields in _of_others(live) for path in _added(fields, manifest, live, ())]
    in_ours = {path for path in found if any(path[: len(root)] == root for root in roots)}
    return sorted((path for path in in_ours if not _is_default(live, path)), key=str)


def is_shared(kind: str, live: Mapping[str, Any]) -> bool:
    """Return True if another manager has set anything in the parts of a live object that are ours."""
    roots = [root for root in _OURS.get(kind, ()) if not _is_default(live, root)]
    return any(_has(fields, root) for fields in _of_others(live) for root in roots)


def nulls(paths: Iterable[Path]) -> dict[str, Any]:
    """Return a merge patch that removes these fields, but for those inside lists, which a merge patch cannot reach."""
    patch: dict[str, Any] = {}
    for path in paths:
        if any(isinstance(step, int) for step in path):
            continue
        here: dict[Any, Any] = patch
        *way, last = path
        for step in way:
            here = here.setdefault(step, {})
        here[last] = None
    return patch


def _of_others(live: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the sets of fields (FieldsV1) of all managers but us; the subresource /scale sets replicas alone."""
    entries = live["metadata"].get("managedFields") or ()
    others = (each for each in entries if each.get("manager") != FIELD_MANAGER and "subresource" not in each)
    return [each.get("fieldsV1") or {} for each in others]


def _is_default(live: Mapping[str, Any], path: Path) -> bool:
    return any(path == root and value_at(live, str, *root) == value for root, value in _DEFAULTS.items())


def _has(fields: Mapping[str, Any], root: Iterable[str]) -> bool:
    for step in root:
        if f"f:{step}" not in fields:
            return False
        fields = fields[f"f:{step}"]
    return True


def _added(fields: Mapping[str, Any], ours: Any, live: Any, path: Path) -> Iterator[Path]:
    """Yield the deepest-owned places of `fields` that `ours` does not have and `live` does."""
    for name, below in fields.items():
        step = _step(name, live)
        if step is None:
            continue
        has, mine = _own_item(name, ours)
        if not has:
            yield (*path, step)
        else:
            yield from _added(below, mine, live[step], (*path, step))


def _step(name: str, live: Any) -> str | int | None:
    """Return the key or index in `live` that a key of FieldsV1 means.

    None: it has none, or this is the place itself.
    """
    sort, _, rest = name.partition(":")
    if sort == "f":
        return rest if isinstance(live, Mapping) and rest in live else None
    if sort not in ("k", "v") or not isinstance(live, list):
        return None
    return next((index for index, item in enumerate(live) if is_item(name, item)), None)


def _own_item(name: str, ours: Any) -> tuple[bool, Any]:
    """Return whether `ours` has the item that a key of FieldsV1 means, and the item."""
    sort, _, rest = name.partition(":")
    if sort == "f":
        return isinstance(ours, Mapping) and rest in ours, ours.get(rest) if isinstance(ours, Mapping) else None
    items = [item for item in ours if is_item(name, item)] if isinstance(ours, list) else []
    return bool(items), items[0] if items else None
