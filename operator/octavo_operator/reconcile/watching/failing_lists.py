"""Lists that fail, by namespace and kind. `watched_namespaces` asks for the first object every few seconds, `resync`
for all objects from time to time: one that cannot be converted makes the list of all fail.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from octavo_operator.reconcile.kinds import OPTIONAL, Kind

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
"""A list that fails so often in a row is reported. Fewer failures are those of an API server that is starting."""
Identity = tuple[str, Kind]
"""A namespace ("": the whole cluster) and a kind that is listed there."""


@dataclass(frozen=True)
class _Failures:
    """How often in a row a list has failed, and why it did the last time."""

    count: int
    why: str
    of_all: bool
    """Whether all objects were asked for once."""
    at_once: bool
    """Whether the last one asked for the first object alone."""


class FailingLists:
    """The lists that have failed since they last succeeded."""

    def __init__(self) -> None:
        self._failures: dict[Identity, _Failures] = {}

    def failed(self, identity: Identity, why: str, of_all: bool = False) -> bool:
        """Note a failure, `of_all`: of the list of all objects; return True if it lasts."""
        before = self._failures.get(identity, _Failures(0, "", of_all=False, at_once=False))
        now = _Failures(before.count + 1, why, of_all=of_all or before.of_all, at_once=not of_all)
        self._failures[identity] = now
        if now.count == MOST_FAILURES and identity[1] not in OPTIONAL:  # of these it is said that they are not watched
            logger.warning("%s", sentence(identity, why))
        return now.count >= MOST_FAILURES

    def succeeded(self, identity: Identity) -> None:
        """Note a success."""
        before = self._failures.pop(identity, None)
        if before and before.count >= MOST_FAILURES and identity[1] not in OPTIONAL:
            logger.info("%s of %s can be listed again", identity[1].plural, named(identity[0]))

    def forget(self, identity: Identity) -> None:
        """Forget the failures of a list that may not be made any more."""
        self._failures.pop(identity, None)

    def keep(self, asked: Collection[Identity]) -> None:
        """Forget the failures of all lists but those that are still asked for."""
        self._failures = {identity: found for identity, found in self._failures.items() if identity in asked}

    def __contains__(self, identity: object) -> bool:
        return identity in self._failures

    def asks_for_all(self, identity: Identity) -> bool:
        """Return True if only a list of all objects shows whether it still fails."""
        return identity in self._failures and self._failures[identity].of_all

    def fails_at_once(self, identity: Identity) -> bool:
        """Return True if the list has failed that asks for the first object alone: it is the API server that fails."""
        return identity in self._failures and self._failures[identity].at_once

    @property
    def lasting(self) -> Mapping[Identity, str]:
        """Why each list fails that has failed MOST_FAILURES times in a row."""
        return {each: found.why for each, found in self._failures.items() if found.count >= MOST_FAILURES}


def sentence(identity: Identity, why: str) -> str:
    """Return what users read of a list that fails."""
    namespace, kind = identity
    return f"{named(namespace)}: its {kind.plural} cannot be listed, so their changes go unseen: {why}"


def named(namespace: str) -> str:
    """Return what a namespace is called in a sentence."""
    return f"namespace {namespace}" if namespace else "the cluster"
