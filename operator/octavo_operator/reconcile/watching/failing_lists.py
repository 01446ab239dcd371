"""Lists that fail, by namespace and kind, whoever asks: `watched_namespaces` for the first object every few seconds, or
`resync` for all of them from time to time. One object that cannot be converted makes the list of all fail.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.reconcile.kinds import Kind

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
"""A list that fails so often in a row is reported. Fewer failures are those of an API server that is starting."""
Identity = tuple[str, Kind]
"""A namespace ("": the whole cluster) and a kind that is listed there."""


@dataclass(frozen=True)
class _Failures:
    """How often in a row a list has failed, why it did the last time, and whether all objects were asked for once."""

    count: int
    why: str
    of_all: bool


class FailingLists:
    """The lists that have failed since they last succeeded."""

    def __init__(self) -> None:
        self._failures: dict[Identity, _Failures] = {}

    def failed(self, identity: Identity, why: str, of_all: bool = False) -> bool:
        """Note a failure, `of_all`: of the list of all objects; return True if it lasts."""
        before = self._failures.get(identity, _Failures(0, "", False))
        now = self._failures[identity] = _Failures(before.count + 1, why, of_all or before.of_all)
        if now.count == MOST_FAILURES:
            logger.warning("%s", sentence(identity, why))
        return now.count >= MOST_FAILURES

    def succeeded(self, identity: Identity) -> None:
        """Note a success."""
        before = self._failures.pop(identity, None)
        if before and before.count >= MOST_FAILURES:
            logger.info("%s of %s can be listed again", identity[1].plural, named(identity[0]))

    def __contains__(self, identity: object) -> bool:
        return identity in self._failures

    def asks_for_all(self, identity: Identity) -> bool:
        """Return True if only a list of all objects shows whether it still fails."""
        return identity in self._failures and self._failures[identity].of_all

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
