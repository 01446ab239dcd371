"""Children left over from a deleted LLMService of the same name, which the garbage collector has not deleted.

It may take minutes on a busy cluster, and it deletes nothing at all while it cannot list one of the kinds, as with an
aggregated API that does not answer. A child is deleted only if none of its owners exists any more: LLMServices of
one name have different uids, and the API server says which one of them exists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from octavo_operator.api.names import GROUP, KIND
from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.kinds import LLMSERVICE, Kind
from octavo_operator.reconcile.observation.observe import is_terminating

Object = dict[str, Any]
logger = logging.getLogger(__name__)


class Remover(Protocol):
    """The API calls that deleting what is left over makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the live object, or None."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        """Delete the object of that uid, where `version` is given in that resource version alone."""


def is_of_a_namesake(live: Mapping[str, Any], name: str) -> bool:
    """Return True if the controller of a live object is, or was, an LLMService of that name."""
    owners = live["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and _is_namesake(each, name) for each in owners)


async def delete_orphan(cluster: Remover, kind: Kind, live: Mapping[str, Any], service: LLMService) -> bool:
    """Delete a live child whose owners are all deleted LLMServices of this name; False: it is not such a child.

    The API server is asked which LLMService lives, since a watch may be behind.
    """
    metadata, uid = live["metadata"], service.metadata.uid
    owners = metadata.get("ownerReferences") or ()
    gone = [each for each in owners if _is_namesake(each, service.name) and each["uid"] != uid]
    if not uid or not gone or len(gone) < len(owners) or is_terminating(live):
        return False
    living = await cluster.get(LLMSERVICE, service.namespace, service.name)
    if living is None or living["metadata"]["uid"] != uid:
        return False
    logger.info(
        "%s/%s: deleting %s %s, which a deleted LLMService of this name has left (uid %s)",
        *(service.namespace, service.name, kind.name, metadata["name"], gone[0]["uid"]),
    )
    await cluster.delete(kind, service.namespace, metadata["name"], metadata["uid"], metadata["resourceVersion"])
    return True


def _is_namesake(owner: Mapping[str, Any], name: str) -> bool:
    group = str(owner.get("apiVersion", "")).rpartition("/")[0]
    return (group, owner["kind"], owner["name"]) == (GROUP, KIND, name)
