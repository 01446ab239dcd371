"""Drift is mended at once; but with a manager that keeps changing the same field no war is fought.

What of an object is not as it should be is told by a server-side apply that is only tried (dry run), so that no default
or other way to write the same value counts as a change. Who changed it stands in the object's managed fields.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from octavo_operator.api.names import FIELD_MANAGER
from octavo_operator.reconcile.observe import Key

Path = tuple[str | int, ...]
"""Where in an object: keys of mappings, indexes of lists."""

PAUSE_SECONDS = 60.0
"""Between two writes of ours to the same field that others keep changing."""

_SERVERS_OWN = {"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"}


class HeldError(Exception):
    """A field that was mended less than a minute ago is changed again: mended later. `seconds`: how much later."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Fights:
    """When which field was last mended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mended: dict[Key, dict[tuple[tuple[str, str], Path], float]] = {}

    def forget(self, key: Key) -> None:
        """The LLMService is gone."""
        self._mended.pop(key, None)

    def mend(self, key: Key, child: tuple[str, str], fields: Mapping[Path, str]) -> None:
        """Takes down that these `fields` of `child`, each with who changed it, are mended now; HeldError: not yet."""
        now = self._clock()
        known = {which: when for which, when in self._mended.get(key, {}).items() if when > now - PAUSE_SECONDS}
        self._mended[key] = known
        fought = {path: who for path, who in fields.items() if (child, path) in known}
        if fought:
            seconds = max(known[child, path] for path in fought) + PAUSE_SECONDS - now
            raise HeldError(_sentence(child, fought), seconds)
        known.update({(child, path): now for path in fields})


def _sentence(child: tuple[str, str], fought: Mapping[Path, str]) -> str:
    told = "; ".join(f"{spelled(path)} by {who}" for path, who in list(fought.items())[:3])
    return (
        f"{child[0]} {child[1]} is changed again and again: {told}. It is set back once a minute; let that manager "
        "leave it alone, or say in the LLMService what it should be"
    )


def changed_paths(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Path]:
    """Where two states of an object differ, but for its status and what only the server writes; the deepest places."""
    return [path for path in _differences(before, after, ()) if not _servers_own(path)]


def _servers_own(path: Path) -> bool:
    return path[:1] == ("status",) or (path[:1] == ("metadata",) and path[1] in _SERVERS_OWN)


def _differences(before: Any, after: Any, path: Path) -> Iterator[Path]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(name), after.get(name), (*path, name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, (*path, index))
    else:
        yield path


def others(live: Mapping[str, Any], path: Path) -> str:
    """Who, beside us, has set the field at `path`; of a field that is gone: who last changed the object."""
    managers = [
        entry
        for entry in live["metadata"].get("managedFields") or ()
        if entry["manager"] != FIELD_MANAGER and entry.get("subresource") != "status"
    ]
    owners = [entry["manager"] for entry in managers if _owns(entry.get("fieldsV1") or {}, live, path)]
    if not owners:
        latest = max(managers, key=lambda entry: str(entry.get("time") or ""), default=None)
        owners = [latest["manager"]] if latest else ["somebody who removed it"]
    return ", ".join(sorted(set(owners)))


def _owns(fields: Mapping[str, Any], live: Any, path: Path) -> bool:
    """Whether the set of `fields` (of managedFields, FieldsV1) has `path`, or a part of it that is owned as a whole."""
    for step in path:
        live = _child(live, step)
        known = [fields[name] for name in fields if _names(name, step, live)]
        if not known:
            return fields == {}  # a leaf: all below is one value
        fields = known[0]
    return True


def _child(live: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return live[step] if isinstance(live, list) and step < len(live) else None
    return live.get(step) if isinstance(live, Mapping) else None


def _names(name: str, step: str | int, item: Any) -> bool:
    """Whether a key of FieldsV1 (`f:name`, `k:{"name":"x"}`, `v:"x"`) means this step, which leads to `item`."""
    sort, _, rest = name.partition(":")
    if isinstance(step, str):
        return sort == "f" and rest == step
    if sort == "k":
        return isinstance(item, Mapping) and all(item.get(key) == value for key, value in json.loads(rest).items())
    return sort == "v" and json.loads(rest) == item


def spelled(path: Path) -> str:
    """As in `spec.template.spec.containers[0].image`; empty: the whole object."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the whole object"
