"""The indexes that the watches fill: of each object what is read, by the LLMService that it is or belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from octavo_operator.reconcile.kinds import LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import Key, Object, key_of
from octavo_operator.reconcile.observation.trimmed import trimmed

logger = logging.getLogger(__name__)


class KindIndex(Mapping[Key, Sequence[Object]]):
    """The objects of one kind, each known by its uid."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[str, Object]] = {}
        self._keys: dict[str, Key] = {}

    def __getitem__(self, key: Key) -> Sequence[Object]:
        return tuple(self._objects[key].values())

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, uid: str, key: Key, body: Object) -> None:
        """Note an object as it is now, which belongs to `key`, and to no other any more."""
        if self._keys.get(uid) != key:
            self.discard(uid)
        self._keys[uid] = key
        self._objects.setdefault(key, {})[uid] = body

    def key_of(self, uid: str) -> Key | None:
        """Return what an object belongs to; None: it is not known."""
        return self._keys.get(uid)

    def discard(self, uid: str) -> Object | None:
        """Forget an object; return it, or None if it was not known."""
        key = self._keys.pop(uid, None)
        if key is None:
            return None
        of_key = self._objects[key]
        body = of_key.pop(uid)
        if not of_key:
            del self._objects[key]
        return body


class Indexes:
    """The indexes of `kinds`, by the kinds' plurals. `changed` is called with the owner of each child that changes, and
    `complete` when all kinds in all `namespaces` have been listed."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        namespaces: Sequence[str],
        changed: Callable[[Key], object],
        complete: Callable[[], object],
    ) -> None:
        self.by_plural = {kind.plural: KindIndex() for kind in kinds}
        self._changed, self._complete = changed, complete
        self._unlisted = {(kind.plural, namespace) for kind in kinds for namespace in namespaces}

    def take(self, kind: Kind, body: Object) -> Object:
        """Note an object as it is now; return what is kept of it."""
        index, uid = self.by_plural[kind.plural], body["metadata"]["uid"]
        kept, before, key = _kept(kind, body), index.key_of(uid), key_of(kind, body)
        if key is None:  # no LLMService owns it, or none any more
            index.discard(uid)
        else:
            index.put(uid, key, kept)
        self._report(kind, {before, key})
        return kept

    def listed(self, kind: Kind, namespace: str) -> None:
        """Note that all objects of a kind in a namespace ("": in all) have been taken."""
        self._unlisted.discard((kind.plural, namespace))
        if not self._unlisted:
            self._complete()

    def drop(self, kind: Kind, uid: str) -> Object | None:
        """Note that an object is gone; return what was kept of it, None if nothing was."""
        index = self.by_plural[kind.plural]
        before = index.key_of(uid)
        body = index.discard(uid)
        self._report(kind, {before})
        return body

    def _report(self, kind: Kind, keys: set[Key | None]) -> None:
        for key in keys:
            if key and kind is not LLMSERVICE:  # of LLMServices kopf reports the changes
                self._changed(key)


def _kept(kind: Kind, body: Object) -> Object:
    """Return `trimmed`, or the metadata alone of an object that this version cannot read.

    Without that a resync would take the object for one that the watches have missed, and end the process for ever.
    """
    try:
        return trimmed(kind, body)
    except Exception:
        metadata = body["metadata"]
        logger.exception("cannot read %s %s/%s", kind.name, metadata.get("namespace"), metadata["name"])
        return {"kind": kind.name, "metadata": metadata, "status": {}}
