"""Which of the watched namespaces can be read, checked every ten seconds: deleting a namespace deletes its Role too.

A namespace that cannot be read must not stop the watches of the others, so these are opened without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.discovery import WatchesOutdatedError
from octavo_operator.reconcile.kinds import Kind

logger = logging.getLogger(__name__)

POLL_SECONDS = 10.0
_FORBIDDEN = 403


class NamespacesChangedError(WatchesOutdatedError):
    """Other namespaces can be read than those that the watches were opened for."""


class Prober(Protocol):
    """What is needed of a cluster."""

    async def probe(self, kind: Kind, namespace: str) -> None:
        """Raises ApiError if objects of the kind cannot be listed in the namespace; without one, in the cluster."""


class WatchedNamespaces:
    """The namespaces that the operator watches, and why some of them cannot be read at present."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self._namespaces = tuple(namespaces) or ("",)  # kopf and paths call the whole cluster so
        self._unreadable: dict[str, str] = {}

    @property
    def readable(self) -> tuple[str, ...]:
        """The namespaces to watch now; ("",) is the whole cluster, and () nothing at all."""
        return tuple(each for each in self._namespaces if each not in self._unreadable)

    @property
    def problems(self) -> list[str]:
        """A sentence for each namespace that cannot be read."""
        return [f"{_named(each)} cannot be read: {why}" for each, why in self._unreadable.items()]

    def by_namespace(self) -> dict[str, bool]:
        """Whether each namespace can be read; the whole cluster is called *."""
        return {each or "*": each not in self._unreadable for each in self._namespaces}

    async def look(self, cluster: Prober, kinds: Sequence[Kind]) -> None:
        """Asks for all `kinds` in each namespace. Only a refusal makes a namespace unreadable, no lost connection."""
        before = dict(self._unreadable)
        answers = await asyncio.gather(*(self._why_not(cluster, kinds, each) for each in self._namespaces))
        self._unreadable = {each: why for each, why in zip(self._namespaces, answers, strict=True) if why}
        for namespace, why in self._unreadable.items():
            if namespace not in before:
                logger.warning(
                    "%s cannot be read, and nothing in it is reconciled until then: %s", _named(namespace), why
                )
        for namespace in before.keys() - self._unreadable.keys():
            logger.info("%s can be read again", _named(namespace))

    async def _why_not(self, cluster: Prober, kinds: Sequence[Kind], namespace: str) -> str:
        for kind in kinds:
            try:
                await cluster.probe(kind, namespace)
            except ApiError as error:
                if error.status == _FORBIDDEN:
                    return error.message
                if error.status != 404:  # a CRD that was removed is discovery's concern
                    return self._unreadable.get(namespace, "")
        return ""


async def check_namespaces(cluster: Prober, scope: WatchedNamespaces, kinds: Sequence[Kind]) -> None:
    """Raises NamespacesChangedError if other namespaces can be read than when the scope was last asked."""
    before = scope.readable
    await scope.look(cluster, kinds)
    if scope.readable != before:
        names = ", ".join(map(_named, scope.readable))
        raise NamespacesChangedError(f"the namespaces that can be read are now: {names or 'none'}")


async def watch_namespaces(cluster: Prober, scope: WatchedNamespaces, kinds: Sequence[Kind]) -> None:
    """For ever; NamespacesChangedError once other namespaces can be read."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        await check_namespaces(cluster, scope, kinds)


def _named(namespace: str) -> str:
    return f"namespace {namespace}" if namespace else "the cluster"
