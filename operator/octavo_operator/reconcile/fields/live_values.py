"""Takes the live values of contested fields into a manifest, so that its other fields can be applied. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.reconcile.fields.added_fields import Path


def with_live_values(
    manifest: Mapping[str, Any], live: Mapping[str, Any], paths: Iterable[Path]
) -> dict[str, Any] | None:
    """Return `manifest` with what `live` has at `paths` (of `live`); None where one leads to nothing of ours."""
    result = copy.deepcopy(dict(manifest))
    return result if all(_take_live(result, live, path) for path in paths) else None


def _take_live(ours: Any, live: Any, path: Path) -> bool:
    if not path:
        return False
    *way, last = path
    for step in way:
        ours, live = _inside(ours, live, step), _at(live, step)
    theirs = _at(live, last)
    if isinstance(ours, dict):
        if theirs is None:
            ours.pop(last, None)
        else:
            ours[last] = theirs
    elif _same_length(ours, live) and isinstance(last, int):
        ours[last] = theirs
    else:
        return False
    return True


def _at(container: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return container[step] if isinstance(container, list) and step < len(container) else None
    return container.get(step) if isinstance(container, Mapping) else None


def _inside(ours: Any, live: Any, step: str | int) -> Any:
    """Return the part of `ours` for `live[step]`: lists to which others may have added items are matched by name."""
    item = _at(live, step)
    if isinstance(step, int) and isinstance(ours, list) and isinstance(item, Mapping) and "name" in item:
        return next((each for each in ours if isinstance(each, Mapping) and each.get("name") == item["name"]), None)
    return _at(ours, step) if isinstance(step, str) or _same_length(ours, live) else None


def _same_length(ours: Any, live: Any) -> bool:
    return isinstance(ours, list) and isinstance(live, list) and len(ours) == len(live)
