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
KindInNamespace = tuple[str, Kind]
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
        self._failures: dict[KindInNamespace, _Failures] = {}

    def failed(self, which: KindInNamespace, why: str, of_all: bool = False) -> bool:
        """Note a failure, `of_all`: of the list of all objects; return True if it lasts."""
        before = self._failures.get(which, _Failures(0, "", of_all=False, at_once=False))
        now = _Failures(before.count + 1, why, of_all=of_all or before.of_all, at_once=not of_all)
        self._failures[which] = now
        if now.count == MOST_FAILURES and which[1] not in OPTIONAL:  # of these it is said that they are not watched
            logger.warning("%s", sentence(which, why))
        return now.count >= MOST_FAILURES

    def succeeded(self, which: KindInNamespace) -> None:
        """Note a success."""
        before = self._failures.pop(which, None)
        if before and before.count >= MOST_FAILURES and which[1] not in OPTIONAL:
            logger.info("%s of %s can be listed again", which[1].plural, named(which[0]))

    def forget(self, which: KindInNamespace) -> None:
        """Forget the failures of a list that may not be made any more."""
        self._failures.pop(which, None)

    def keep(self, asked: Collection[KindInNamespace]) -> None:
        """Forget the failures of all lists but those that are still asked for."""
        self._failures = {which: found for which, found in self._failures.items() if which in asked}

    def __contains__(self, which: object) -> bool:
        return which in self._failures

    def asks_for_all(self, which: KindInNamespace) -> bool:
        """Return True if only a list of all objects shows whether it still fails."""
        return which in self._failures and self._failures[which].of_all

    def fails_at_once(self, which: KindInNamespace) -> bool:
        """Return True if the list has failed that asks for the first object alone: it is the API server that fails."""
        return which in self._failures and self._failures[which].at_once

    @property
    def lasting(self) -> Mapping[KindInNamespace, str]:
        """Why each list fails that has failed MOST_FAILURES times in a row."""
        return {each: found.why for each, found in self._failures.items() if found.count >= MOST_FAILURES}


def sentence(which: KindInNamespace, why: str) -> str:
    """Return what users read of a list that fails."""
    namespace, kind = which
    return f"{named(namespace)}: its {kind.plural} cannot be listed, so their changes go unseen: {why}"


def named(namespace: str) -> str:
    """Return what a namespace is called in a sentence."""
    return f"namespace {namespace}" if namespace else "the cluster"
