"""The kinds that can be read in each watched namespace, checked by the clock: a deleted namespace loses its Role.

What cannot be read must not stop the watches of the rest, so these are opened without it: a namespace whose LLMServices
cannot be read, and elsewhere single kinds, whose objects are then read by name (`unwatched`). So is a foreign kind that
fails again and again, as with a CRD whose conversion webhook does not answer: no watch begins before all are listed.
What the operator cannot do without stays watched, and that it cannot be listed is reported as a problem.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from octavo_operator.reconcile.api_requests.api_error import HELD_BACK, ApiError
from octavo_operator.reconcile.api_requests.rights import Right
from octavo_operator.reconcile.kinds import LLMSERVICE, OPTIONAL, Kind
from octavo_operator.reconcile.observation.relist import Listing
from octavo_operator.reconcile.watching.discovery import WatchesOutdatedError
from octavo_operator.reconcile.watching.failing_lists import FailingLists, KindInNamespace, named, sentence

logger = logging.getLogger(__name__)

POLL_SECONDS = 10.0
"""Seconds between two checks whether LLMServices, and the kinds whose rights were refused, can be listed."""
CHECKS_OF_ALL = 6
"""One of this many checks asks for all kinds, and so does one after a refusal, as rights are often lost together."""
_FORBIDDEN, _NOT_FOUND = 403, 404
_AT_ONCE = 16
"""So many questions are under way at most: with hundreds of namespaces the requests for the Lease must not wait."""
_CLUSTER = ""

Refused = dict[KindInNamespace, str]
"""The reasons why kinds cannot be read in namespaces."""


class NamespacesChangedError(WatchesOutdatedError):
    """Other namespaces, or other kinds in one, can be read than those that the watches were opened for."""


class Prober(Protocol):
    """The API calls that this file makes."""

    async def probe(self, kind: Kind, namespace: str) -> None:
        """Raise ApiError if objects of the kind cannot be listed and watched in the namespace; "": in the cluster."""

    async def list_all(self, kind: Kind, namespace: str) -> Listing:
        """Return all objects of the kind that the watches should know."""


class WatchedNamespaces:
    """The namespaces that the operator watches, and why some, or some kinds there, cannot be read at present.

    `failing`: lists that fail although the operator may make them; those that a resync finds too.
    """

    def __init__(self, namespaces: Sequence[str]) -> None:
        self._namespaces = tuple(namespaces) or (_CLUSTER,)  # kopf and paths call the whole cluster so
        self._refused: Refused = {}
        self.failing = FailingLists()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @property
    def readable(self) -> tuple[str, ...]:
        """The namespaces to watch now; ("",) is the whole cluster, and () nothing at all."""
        return tuple(each for each in self._namespaces if (each, LLMSERVICE) not in self._refused)

    def groups(self, kinds: Sequence[Kind]) -> dict[tuple[Kind, ...], tuple[str, ...]]:
        """Return the namespaces by those of `kinds` that can be read there: one group, unless a right is missing."""
        groups: dict[tuple[Kind, ...], tuple[str, ...]] = {}
        for namespace in self.readable:
            there = tuple(kind for kind in kinds if (namespace, kind) not in self._refused)
            groups[there] = (*groups.get(there, ()), namespace)
        return groups

    def unwatched(self, namespace: str) -> Mapping[Kind, str]:
        """Return the kinds that cannot be read in a namespace, each with a sentence."""
        scope = _CLUSTER if self._namespaces == (_CLUSTER,) else namespace
        return {kind: why for (where, kind), why in self._refused.items() if where == scope}

    @property
    def problems(self) -> list[str]:
        """Return a sentence for each namespace or kind that cannot be read, and for each list that keeps failing."""
        failing = {each: why for each, why in self.failing.lasting.items() if each not in self._refused}
        refused = [_sentence(*which, why) for which, why in self._refused.items()]
        return refused + [sentence(which, why) for which, why in failing.items()]

    def by_namespace(self) -> dict[str, bool]:
        """Return for each namespace whether its LLMServices can be read; the whole cluster is called *."""
        failing = self.failing.lasting
        readable = {each for each in self.readable if (each, LLMSERVICE) not in failing}
        return {each or "*": each in readable for each in self._namespaces}

    async def probe(self, cluster: Prober, kinds: Sequence[Kind], everything: bool = True) -> None:
        """Ask for `kinds`, LLMServices first, in each namespace. Only a refusal makes one unreadable, or of a foreign
        kind failures that last.

        Unless `everything` is asked for, only LLMServices are, and what was refused or has failed.
        """
        before = self._refused

        def is_doubtful(namespace: str, kind: Kind) -> bool:
            return kind is LLMSERVICE or (namespace, kind) in before or (namespace, kind) in self.failing

        asked = {each: [kind for kind in kinds if everything or is_doubtful(each, kind)] for each in self._namespaces}
        answers = await asyncio.gather(*(self._ask(cluster, asked[each], each) for each in self._namespaces))
        self._refused = {which: why for answer in answers for which, why in answer.items()}
        self.failing.keep({(each, kind) for each in self.readable for kind in kinds})
        for which in self._refused.keys() - before.keys():
            logger.warning("%s", _sentence(*which, self._refused[which]))
        for namespace, kind in before.keys() - self._refused.keys():
            logger.info("%s of %s can be read again", kind.plural, named(namespace))

    async def _ask(self, cluster: Prober, kinds: Sequence[Kind], namespace: str) -> Refused:
        """Ask for LLMServices, and then for the other kinds, several at once: each answer may take seconds."""
        why = await self._why_not(cluster, LLMSERVICE, namespace)
        if self.failing.fails_at_once((namespace, LLMSERVICE)):
            return {which: known for which, known in self._refused.items() if which[0] == namespace}
        if why:  # without these, nothing else is looked after there
            return {(namespace, LLMSERVICE): why}
        others = [kind for kind in kinds if kind is not LLMSERVICE]
        answers = await asyncio.gather(*(self._why_not(cluster, kind, namespace) for kind in others))
        return {(namespace, kind): why for kind, why in zip(others, answers, strict=True) if why}

    async def _why_not(self, cluster: Prober, kind: Kind, namespace: str) -> str:
        which, of_all = (namespace, kind), False
        try:
            async with self._turns:
                await cluster.probe(kind, namespace)
                if of_all := self.failing.asks_for_all(which):
                    await cluster.list_all(kind, namespace)
        except ApiError as error:
            if error.reason == HELD_BACK:  # nothing was asked: it is as before
                return self._refused.get(which, "")
            if error.status not in (_FORBIDDEN, _NOT_FOUND):
                return self._failed(which, error, of_all)
            self.failing.forget(which)
            return error.message if error.status == _FORBIDDEN else ""  # a removed CRD is discovery's concern
        self.failing.succeeded(which)
        return ""

    def _failed(self, which: KindInNamespace, error: ApiError, of_all: bool) -> str:
        """Return why the kind is not to be watched after one more failure; empty: it is as before."""
        lasts = self.failing.failed(which, error.message, of_all)
        return error.message if lasts and which[1] in OPTIONAL else self._refused.get(which, "")


async def check_namespaces(
    cluster: Prober, scope: WatchedNamespaces, kinds: Sequence[Kind], everything: bool = True
) -> None:
    """Raise NamespacesChangedError if something else can be read than when the scope was last asked."""
    before = scope.groups(kinds)
    await scope.probe(cluster, kinds, everything)
    if scope.groups(kinds) != before:
        names = ", ".join(map(named, scope.readable))
        raise NamespacesChangedError(f"can read {names or 'nothing'}, or other kinds there than before")


async def watch_namespaces(
    cluster: Prober, scope: WatchedNamespaces, kinds: Sequence[Kind], refused: Callable[[], Collection[Right]]
) -> None:
    """Check again and again; raises NamespacesChangedError once other namespaces or kinds can be read.

    `refused`: the rights that were lately refused to any request.
    """
    known = set(refused())
    for number in itertools.count(1):
        await asyncio.sleep(POLL_SECONDS)
        lately = set(refused())
        await check_namespaces(cluster, scope, kinds, everything=number % CHECKS_OF_ALL == 0 or not lately <= known)
        known = lately


def _sentence(namespace: str, kind: Kind, why: str) -> str:
    if kind is LLMSERVICE:
        return f"{named(namespace)} cannot be read: {why}"
    return f"{named(namespace)}: its {kind.plural} are not watched: {why}"
