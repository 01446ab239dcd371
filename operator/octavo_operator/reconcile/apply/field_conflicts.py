"""Fields that another manager keeps changing: each is reverted at most once a minute, and the conflict is reported.

Drift is what a server-side apply would change (found by a dry run), so that neither defaults nor another way to write
the same value count. The managed fields of the object name the manager that made the change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.names import FIELD_MANAGER
from octavo_operator.reconcile.apply.other_autoscalers import DELETED, is_autoscaler
from octavo_operator.reconcile.fields.added_fields import Path
from octavo_operator.reconcile.fields.ownership import APPLIED
from octavo_operator.reconcile.observation.observe import Key

PAUSE_SECONDS = 60.0
"""The pause between two writes of ours to the same field that others keep changing."""

CONFLICT_SECONDS = 180.0
"""A conflict ends when the field was not changed for this time, which is longer than the interval of GitOps tools."""

_LONGEST_PAUSE_SECONDS = 3600.0
"""Each change of a pod template replaces pods, which load for minutes: so the pauses double, up to this. So do those of
replicas that an autoscaler sets: it sets no 0, and its next number starts what ours has just ended.
"""
_TEMPLATE = ("spec", "template")
REPLICAS = ("spec", "replicas")
_TEMPLATE_CONFLICT_SECONDS = 900.0
"""A conflict over pods ends after this time, since some GitOps tools look only every ten minutes."""

_MOST_TIMES = 4
"""After so many reverts of different fields of one mapping, the mapping counts as one field: a manager that adds a new
key each time would otherwise never change the same field twice.
"""

_NAMELESS = "a client without a name"
"""Stands for a manager that sends no User-Agent, and so has no name."""

_SERVERS_OWN = {"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"}


Child = tuple[str, str]
"""Kind and name of a child."""


@dataclass(frozen=True)
class Conflict:
    """Fields of a child that others keep changing, in a sentence. `seconds`: until there is more to do or to say.

    `of_pods`: among them are the pod template or the replicas of the Deployment, or it is deleted as a whole, so that
    its pods are not those wanted.
    """

    child: Child
    message: str
    seconds: float
    of_pods: bool = False


@dataclass
class _Revert:
    """The last revert of a field."""

    when: float
    who: str
    """The manager that had changed the field."""
    contested: bool = False
    """Whether it was changed again soon after."""
    pause: float = PAUSE_SECONDS
    """Seconds until it is reverted again."""
    lasts: float = CONFLICT_SECONDS
    """Seconds without a change after which the conflict over it is over."""

    @property
    def free(self) -> float:
        """The time from which on the field may be reverted again."""
        return self.when + self.pause

    @property
    def end(self) -> float:
        """The time at which the conflict is over if no other manager changes the field until then."""
        return self.when + max(self.lasts, 2 * self.pause)


class FieldConflicts:
    """Remembers when each field was last reverted, and which fields other managers keep changing.

    A conflict lasts until the field has not been changed for CONFLICT_SECONDS, also between two changes; where each
    change starts or ends pods it lasts longer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reverts: dict[Key, dict[tuple[Child, Path], _Revert]] = {}

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._reverts.pop(key, None)

    def settled(self, key: Key, child: Child) -> None:
        """Forget a child's conflicts, as its manifest changes: the other manager may accept the new one."""
        reverts = self._reverts.get(key, {})
        for which in [which for which in reverts if which[0] == child]:
            del reverts[which]

    def over_replicas(self, key: Key) -> list[str]:
        """Return the names of the Deployments of `key` over whose replicas there is a conflict with an autoscaler."""
        reverts = self._lasting(key).items()
        return [child[1] for (child, path), each in reverts if each.contested and _is_scaled(path, each.who)]

    def ended(self, key: Key, child: Child, path: Path) -> None:
        """Forget the conflict over a field, which nothing changes any more."""
        self._reverts.get(key, {}).pop((child, path), None)

    def held(self, key: Key, child: Child, fields: Mapping[Path, str]) -> set[Path]:
        """Return the changed `fields` of `child` that are not to be reverted now; `fields` says who changed each."""
        reverts, now = self._lasting(key), self._clock()
        held = set()
        for path, who in fields.items():
            if who == DELETED:  # nothing changes it any more
                reverts.pop((child, path), None)
            for revert in filter(None, (reverts.get((child, path)), reverts.get((child, _mapping_of(path))))):
                if not _costs_pods(path, who):  # as a person's 0 after the numbers of an autoscaler
                    revert.pause = PAUSE_SECONDS
                if now < revert.free:
                    revert.contested, revert.who = True, who
                    held.add(path)
        return held

    def reverted(self, key: Key, child: Child, fields: Mapping[Path, str]) -> None:
        """Record that `fields` of `child` were reverted; each comes with the manager that had changed it."""
        reverts, now = self._lasting(key), self._clock()
        for path in fields:
            noted = _mapping_of(path) if _changes_keys(reverts, child, path) else path
            before = reverts.get((child, noted))
            if before is None or before.when != now:  # else another key of the same mapping has just been noted
                slow = _costs_pods(noted, fields[path])
                lasts = _TEMPLATE_CONFLICT_SECONDS if slow else CONFLICT_SECONDS
                contested = before is not None or noted != path
                reverts[child, noted] = _Revert(now, fields[path], contested, _next_pause(before, slow), lasts)
        self._reverts[key] = reverts

    def conflicts(self, key: Key) -> list[Conflict]:
        """Return the present conflicts over children of `key`, one for each child."""
        now, contested = self._clock(), dict[Child, dict[Path, _Revert]]()
        for (child, path), revert in self._lasting(key).items():
            if revert.contested:
                contested.setdefault(child, {})[path] = revert
        return [
            Conflict(
                child,
                _sentence(child, reverts),
                min(_next(*each, now) - now for each in reverts.items()),
                any(_decides_pods(child, path) for path in reverts),
            )
            for child, reverts in contested.items()
        ]

    def _lasting(self, key: Key) -> dict[tuple[Child, Path], _Revert]:
        reverts, now = self._reverts.get(key, {}), self._clock()
        for which in [which for which, revert in reverts.items() if now >= revert.end]:
            del reverts[which]
        return reverts


def _mapping_of(path: Path) -> Path:
    """Return the path of the mapping that has the field at `path`."""
    return path[:-1]


def _changes_keys(reverts: Mapping[tuple[Child, Path], _Revert], child: Child, path: Path) -> bool:
    """Return True if other fields beside the one at `path` were lately reverted again and again."""
    mapping = _mapping_of(path)
    if not mapping:
        return False
    times = {
        revert.when for (each, other), revert in reverts.items() if each == child and _mapping_of(other) == mapping
    }
    return (child, mapping) in reverts or ((child, path) not in reverts and len(times) >= _MOST_TIMES)


def _next(path: Path, revert: _Revert, now: float) -> float:
    """Return when the field may be reverted again, or else when the conflict is over.

    Sooner where an autoscaler sets it, since no watch reports its end.
    """
    following = revert.free if now < revert.free else revert.end
    return min(following, now + PAUSE_SECONDS) if _is_scaled(path, revert.who) else following


def _next_pause(before: _Revert | None, slow: bool) -> float:
    return min(2 * before.pause, _LONGEST_PAUSE_SECONDS) if before and slow else PAUSE_SECONDS


def _costs_pods(path: Path, who: str) -> bool:
    """Return True if each change of a field by the manager `who`, and each revert, starts or ends pods."""
    return _is_of_template(path) or _is_scaled(path, who)


def _decides_pods(child: Child, path: Path) -> bool:
    """Return True if its pods are others than those wanted while this field of a child keeps being changed."""
    is_deleted = child[0] == "Deployment" and path == ()
    return is_deleted or path == REPLICAS or _is_of_template(path)


def _is_of_template(path: Path) -> bool:
    return path[: len(_TEMPLATE)] == _TEMPLATE


def _is_scaled(path: Path, who: str) -> bool:
    """Return True if the field is a number of replicas that an autoscaler sets."""
    return path == REPLICAS and is_autoscaler(who)


def _sentence(child: Child, contested: Mapping[Path, _Revert]) -> str:
    if set(contested) == {()}:
        return (
            f"{child[0]} {child[1]} keeps being deleted by another client. It is created again once a minute; stop "
            "what deletes it: Argo CD and Flux delete objects that carry their labels or annotations and are not in "
            "their source, and the API server's audit log names the user"
        )
    fields = "; ".join(sorted(f"{spelled(path)} by {revert.who}" for path, revert in contested.items())[:3])
    slow = any(_costs_pods(path, revert.who) for path, revert in contested.items())
    often = "less and less often, since each change starts or ends pods" if slow else "once a minute"
    begin = f"{child[0]} {child[1]} keeps being changed: {fields}. It is set back {often}; "
    if any(_is_scaled(path, revert.who) for path, revert in contested.items()):
        return (
            f"{begin}a HorizontalPodAutoscaler that is not the LLMService's scales it (kubectl get hpa): delete that, "
            "or the ScaledObject from which KEDA makes it, after which spec.replicas holds again within two minutes, "
            "or set spec.autoscaling in its place"
        )
    return f"{begin}stop that manager from changing it, or set the value in the LLMService"


def drifted_paths(
    live: Mapping[str, Any], tried: Mapping[str, Any], manifest: Mapping[str, Any], added: Sequence[Path] = ()
) -> list[Path]:
    """Return the deepest paths at which the live object differs from `tried`, a dry-run apply of `manifest`.

    Additions and changes by the apply beside that are no drift: a webhook may write another annotation at each write,
    such as the time. What an apply would remove is always drift: another manager has put it into a mapping that is
    entirely ours, such as the selector of a Service. So are the consequences of removing fields that others have
    `added`, even a default.
    """

    def is_ours(path: Path) -> bool:
        removed = _value_at(tried, path) is None or any(_meet(path, each) for each in added)
        return removed or _is_asked_for(manifest, path)

    return [path for path in _differences(live, tried, ()) if not _servers_own(path) and is_ours(path)]


def _meet(one: Path, other: Path) -> bool:
    """Return True if path `one` is `other`, or inside it."""
    return one[: len(other)] == other[: len(one)]


def _is_asked_for(manifest: Mapping[str, Any], path: Path) -> bool:
    """Return True if `manifest` says what is to be at `path`. All items of its lists are its own, at any index."""
    here: Any = manifest
    for step in path:
        if not isinstance(here, Mapping):
            return True
        if step not in here:
            return False
        here = here[step]
    return True


def _value_at(here: Any, path: Path) -> Any:
    for step in path:
        here = _child(here, step)
    return here


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
    """Name the managers beside us that have set the field at `path`; if it is gone, who last changed the object."""
    managers = [
        entry
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("manager") != FIELD_MANAGER and entry.get("subresource") != "status"
    ]
    owners = [entry.get("manager") or _NAMELESS for entry in managers if _owns(entry.get("fieldsV1") or {}, live, path)]
    if path == ("metadata", "annotations", APPLIED) and not owners:
        return "a second Octavo operator (stop one of them)"
    if not owners:
        latest = max(managers, key=lambda entry: str(entry.get("time") or ""), default=None)
        # The API server records no manager of replicas that `kubectl scale` has set to 0.
        unnamed = "another client" if _value_at(live, path) is not None else "another client, which removed it"
        owners = [latest.get("manager") or _NAMELESS] if latest else [unnamed]
    return ", ".join(sorted(set(owners)))


def _owns(fields: Mapping[str, Any], live: Any, path: Path) -> bool:
    """Return True if a set of `fields` (managedFields' FieldsV1) has `path`, or a part of it owned as a whole."""
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
    """Return True if a key of FieldsV1 (`f:name`, `k:{"name":"x"}`, `v:"x"`) means this step, which leads to `item`."""
    sort, _, rest = name.partition(":")
    if isinstance(step, str):
        return sort == "f" and rest == step
    if sort == "k":
        return isinstance(item, Mapping) and all(item.get(key) == value for key, value in json.loads(rest).items())
    return sort == "v" and json.loads(rest) == item


def spelled(path: Path) -> str:
    """Return the path as text, such as `spec.template.spec.containers[0].image`; empty for the whole object."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the whole object"
