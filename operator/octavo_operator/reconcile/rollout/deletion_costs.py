"""Has a rollout in place end first the pods whose end makes room for new ones.

A ReplicaSet that becomes smaller chooses by itself among its ready pods. If it ended one on a cordoned node, the new
pod would find no room, and the rollout could not go on: the Deployment ends no further pod while one is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from octavo_operator.api.names import DELETION_COST_ANNOTATION, SPARED
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.adapter_lists import PodWriter
from octavo_operator.reconcile.kinds import POD

logger = logging.getLogger(__name__)


async def spare_pods_on(nodes: Collection[str], cluster: PodWriter, pods: Iterable[Mapping[str, Any]]) -> None:
    """Have the trimmed `pods` that run on these nodes end after others, unless they have a cost already.

    A pod whose cost cannot be written may end first: that is logged.
    """
    for pod in pods:
        metadata, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName")
        if node not in nodes or "deletionTimestamp" in metadata or pod.get("deletionCost"):
            continue
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {DELETION_COST_ANNOTATION: SPARED}}}
        try:
            await cluster.merge(POD, metadata["namespace"], metadata["name"], patch)
        except ApiError as error:
            logger.warning(
                "pod %s/%s serves from a cordoned node and may end before others in a rollout, as its deletion cost "
                "cannot be written: %s",
                metadata["namespace"], metadata["name"], error,
            )  # fmt: skip
