"""Compares what the watches reported with what the API server lists, to find what they missed. Pure.

A watch that has died silently leaves its index as it was, and no reconcile could notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.observation.observe import Index, Key, Object, key_of


@dataclass(frozen=True)
class Listing:
    """All objects of a kind, their metadata only, as of `version`, the resourceVersion of the list."""

    kind: Kind
    version: int
    items: tuple[Object, ...]


@dataclass(frozen=True)
class Missed:
    """An object that is gone, or that the watches reported in an older version than is listed (`seen`, if ever)."""

    key: Key
    kind: str
    uid: str
    seen: str


def count(index: Index) -> int:
    """Return how many objects an index has; one LLMService may have hundreds of pods."""
    return sum(len(items) for _, items in _items(index))


def missed(listing: Listing, index: Index) -> set[Missed]:
    """Return the changes that the index lacks. Versions are numbers that grow, so that an index may also be ahead."""
    seen = {item["metadata"]["uid"]: (key, item) for key, items in _items(index) for item in items}
    found = set()
    for item in listing.items:
        uid, key = item["metadata"]["uid"], key_of(listing.kind, item)
        version = _version(seen.pop(uid)[1]) if uid in seen else 0
        if key and version < _version(item):
            found.add(Missed(key, listing.kind.name, uid, str(version or "")))
    for uid, (key, item) in seen.items():  # not listed: gone, unless it was made after the list
        if _version(item) <= listing.version:
            found.add(Missed(key, listing.kind.name, uid, str(_version(item))))
    return found


def _items(index: Index) -> Iterable[tuple[Key, list[Object]]]:
    # An index changes while it is walked over.
    entries: Mapping[Key, Iterable[Object]] = index
    return [(key, list(entries.get(key, ()))) for key in list(entries)]


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])
