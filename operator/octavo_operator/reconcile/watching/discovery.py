"""Discovers the optional kinds that the cluster has, again and again: CRDs come and go at any moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import LLMSERVICE, OPTIONAL, Kind

logger = logging.getLogger(__name__)

POLL_SECONDS = 20.0


class WatchesOutdatedError(Exception):
    """The cluster's kinds have changed since the watches were opened: they must be opened again."""


class KindsChangedError(WatchesOutdatedError):
    """The cluster has other optional kinds than the watches were opened for."""


class Discoverer(Protocol):
    """The API calls that discovery makes."""

    async def plurals(self, api_version: str) -> frozenset[str]:
        """Return the plurals of the kinds that the API server has in `api_version`; none if it does not know that."""


async def present_kinds(cluster: Discoverer) -> tuple[Kind, ...]:
    """Return the optional kinds that the cluster has; ApiError if it cannot be asked."""
    versions = sorted({kind.api_version for kind in OPTIONAL})
    answers = await asyncio.gather(*map(cluster.plurals, versions))  # at once: each may take seconds
    found = dict(zip(versions, answers, strict=True))
    return tuple(kind for kind in OPTIONAL if kind.plural in found[kind.api_version])


async def check_crd(cluster: Discoverer) -> None:
    """Raise KindsChangedError if the cluster does not serve LLMServices any more."""
    if LLMSERVICE.plural not in await cluster.plurals(LLMSERVICE.api_version):
        raise KindsChangedError(f"the CRD of {LLMSERVICE.api_version} was removed")


async def check_kinds(cluster: Discoverer, known: Sequence[Kind]) -> None:
    """Raise KindsChangedError if the cluster has other optional kinds than `known`."""
    found = await present_kinds(cluster)
    if set(found) != set(known):
        come = ", ".join(kind.name for kind in found if kind not in known)
        gone = ", ".join(kind.name for kind in known if kind not in found)
        raise KindsChangedError(f"CRDs installed: {come or 'none'}; removed: {gone or 'none'}")


async def watch_kinds(cluster: Discoverer, known: Sequence[Kind]) -> None:
    """Check again and again; raises KindsChangedError once the cluster has other optional kinds than `known`."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            await check_crd(cluster)
            await check_kinds(cluster, known)
        except ApiError as error:
            logger.warning("discovery of the API server's kinds failed: %s", error)
