"""Merges spec.podTemplate, a strategic merge patch, over the rendered pod template.

As with `kubectl patch`, mappings are merged, values replaced, and null removes. A list replaces the list before, unless
Kubernetes identifies its items by a key (`patchMergeKey` in its API): then it is merged item by item, new ones come at
the end, and one with `$patch: delete` is removed. `$patch: replace` in a mapping, or as an item of a list, replaces
instead of merging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""List field of a pod's spec or of a container → the key of its items. All other lists are replaced as a whole."""

ONE_OF = ("volumes", "resourceClaims", "env")
"""Lists whose items are one of several kinds, as a volume is: another kind replaces the one before (`retainKeys`)."""

_DIRECTIVE = "$patch"

Object = Mapping[str, Any]


def merge_pod_template(template: Object, patch: Object) -> dict[str, Any]:
    """Return `template` with `patch` merged over it. Labels of `template` are kept, because they select the pods."""
    merged = _merge(template, patch)
    labels = {**(merged["metadata"].get("labels") or {}), **template["metadata"]["labels"]}
    merged["metadata"] = {**merged["metadata"], "labels": labels}
    return merged


def _merge(base: Object, patch: Object) -> dict[str, Any]:
    if patch.get(_DIRECTIVE) == "replace":
        return {name: value for name, value in patch.items() if name != _DIRECTIVE}
    merged = dict(base)
    for name, value in patch.items():
        if name == _DIRECTIVE and value == "merge":
            continue
        if value is None or (isinstance(value, Mapping) and value.get(_DIRECTIVE) == "delete"):
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _merge(before if isinstance(before, Mapping) else {}, value)
        elif isinstance(value, list) and name in MERGE_KEYS:
            merged[name] = _merge_items(merged.get(name) or (), value, MERGE_KEYS[name], one_of=name in ONE_OF)
        else:
            merged[name] = value
    return merged


def _merge_items(base: Sequence[Any], patch: Sequence[Any], key: str, *, one_of: bool) -> list[Any]:
    if {_DIRECTIVE: "replace"} in patch:
        return [item for item in patch if item != {_DIRECTIVE: "replace"}]
    merged = list(base)
    for item in patch:
        found = next((index for index, before in enumerate(merged) if _same(before, item, key)), None)
        if isinstance(item, Mapping) and item.get(_DIRECTIVE) == "delete":
            if found is not None:
                del merged[found]
        elif found is None:
            merged.append(_merge({}, item) if isinstance(item, Mapping) else item)
        else:
            before = {name: value for name, value in merged[found].items() if name in item} if one_of else merged[found]
            merged[found] = _merge(before, item)
    return merged


def _same(before: Any, item: Any, key: str) -> bool:
    if not isinstance(before, Mapping) or not isinstance(item, Mapping):
        return False
    return key in item and before.get(key) == item[key]
