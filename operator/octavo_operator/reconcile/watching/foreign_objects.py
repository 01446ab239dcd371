"""Finds what acts for an LLMService without being part of it: EndpointSlices, PodDisruptionBudgets and pods of others,
and pods that left their Deployment. The watches select by our label, and know a pod of an engine by two more labels.
So they see neither objects of others, which lack these labels, nor pods from which one of them was removed. A pod whose
track label or owner was changed keeps them, and counts as one of the LLMService's; only its owner shows the change.

No such object is changed or deleted: a person may have had a reason for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import (
    COMPONENT_LABEL,
    ENGINE,
    FIELD_MANAGER,
    INSTANCE_LABEL,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    TRACK_LABEL,
    other_controller,
    selector,
)
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import BY_NAME, ENDPOINT_SLICE, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observation.observe import SLICE_OF, Key, Object
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.watching.foreign_budgets import BUDGETS, foreign_budgets
from octavo_operator.reconcile.watching.released_pods import is_released, released_pods
from octavo_operator.reconcile.watching.watched import Watched
from octavo_operator.reconcile.watching.watches import Indexed
from octavo_operator.render.container import PORT_NAME

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 20.0
FIRST_SECONDS = 5.0
"""The time for which reconciles wait for the first look at their namespace."""
_SLICE_MANAGER = "endpointslice.kubernetes.io/managed-by"
_OWN_MANAGER = "endpointslice-controller.k8s.io"
_BUDGET = BY_NAME["PodDisruptionBudget"]
_MADE_BY_US = f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
UNSEEN_PODS = (
    f"{_MADE_BY_US},!{SERVICE_LABEL}",
    f"{_MADE_BY_US},{SERVICE_LABEL},{COMPONENT_LABEL}!={ENGINE}",
    f"{_MADE_BY_US},{SERVICE_LABEL},{COMPONENT_LABEL}={ENGINE},!{TRACK_LABEL}",
)
"""Select the pods that the watches do not know, of those that were made from a Deployment of the operator.

There are hardly any: to list all of them, and to read the answer, was half the work of an operator with nothing to do.
"""


def foreign_slices(wanted: Collection[str]) -> str:
    """Return what selects the EndpointSlices of Services that were made neither by Kubernetes' own controller nor by
    one of the `wanted` managers.
    """
    return f"{SLICE_OF},{_SLICE_MANAGER} notin ({','.join([_OWN_MANAGER, *sorted(wanted)])})"


class Lister(Protocol):
    """The API calls that are needed."""

    async def list_selected(
        self, kind: Kind, namespace: str, selector: str, metadata_only: bool = False
    ) -> Sequence[Object]:
        """Return the objects of the kind that the label selector selects; "": in all namespaces."""


class ForeignObjectWatch:
    """Keeps `found`, the problems of each LLMService, and queues those that have others than before.

    Namespaces that are not `indexed` yet are left out: their own pods are not known, and would count as those of
    others. `wanted_managers`: those whose EndpointSlices the administrator wants.
    """

    def __init__(
        self, cluster: Lister, watched: Watched, indexed: Indexed, wanted_managers: Collection[str] = ()
    ) -> None:
        self.found: dict[Key, tuple[Problem, ...]] = {}
        self._cluster = cluster
        self._watched = watched
        self._indexed = indexed
        self._slices = foreign_slices(wanted_managers)
        self._searched: frozenset[str] = frozenset()
        self._searching = asyncio.Lock()

    async def run(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            async with self._searching:
                await self._search()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def first_search(self, namespace: str) -> None:
        """Wait until this indexed namespace has been looked at, for FIRST_SECONDS at most.

        A reconcile that does not know what was found before the operator started would report that all is well.
        """
        if self._has_searched(namespace):
            return
        try:
            async with asyncio.timeout(FIRST_SECONDS), self._searching:
                if not self._has_searched(namespace):
                    await self._search()
        except TimeoutError:
            logger.warning(
                "looking for pods, EndpointSlices and PodDisruptionBudgets of others takes too long; continuing without"
            )
            self._searched = self._indexed.namespaces

    def _has_searched(self, namespace: str) -> bool:
        return not self._searched.isdisjoint(("", namespace))

    async def _search(self) -> None:
        indexed = self._indexed.namespaces
        try:
            await self.find()
        except ApiError as error:
            logger.warning("cannot look for pods, EndpointSlices and PodDisruptionBudgets of others: %s", error)
        self._searched = indexed

    async def find(self) -> None:
        """Look once."""
        slices = await self._listed(ENDPOINT_SLICE, self._slices, False)
        unseen = [pod for lacks in UNSEEN_PODS for pod in await self._listed(POD, lacks, True)]
        budgets = await self._listed(_BUDGET, BUDGETS, False)
        pods = (*self._all_pods(), *unseen)
        found: dict[Key, tuple[Problem, ...]] = {}
        for key, problem in (*self._of_slices(slices), *self._of_pods(pods), *self._of_budgets(budgets)):
            if problem not in found.get(key, ()):  # all pods of one controller have the same
                found[key] = (*found.get(key, ()), problem)
        changed = [key for key in {*found, *self.found} if found.get(key) != self.found.get(key)]
        self.found.clear()
        self.found.update(found)
        for key in changed:
            self._watched.queue.add(key)

    def _of_slices(self, slices: Iterable[Object]) -> Iterator[tuple[Key, Problem]]:
        for body in slices:
            key = body["metadata"]["namespace"], body["metadata"]["labels"][SLICE_OF]
            if self._is_known(key) and (problem := foreign_slice(body, self._addresses(key))):
                yield key, problem

    def _of_pods(self, pods: Iterable[Object]) -> Iterator[tuple[Key, Problem]]:
        released: dict[Key, list[Mapping[str, Any]]] = {}
        for pod in pods:
            service = _service_of(pod["metadata"])
            key = pod["metadata"]["namespace"], service
            if not self._is_known(key):
                continue
            if is_released(pod["metadata"]):
                released.setdefault(key, []).append(pod["metadata"])
            elif problem := foreign_pod(pod["metadata"], service):
                yield key, problem
        for key, found in released.items():
            yield from ((key, problem) for problem in released_pods(found, key[1]))

    def _of_budgets(self, budgets: Iterable[Object]) -> Iterator[tuple[Key, Problem]]:
        own = [key for key in self._watched.indexes.get(_BUDGET.plural, {}) if self._is_known(key)]
        return foreign_budgets(budgets, {key: self._pods(key) for key in own})

    async def _listed(self, kind: Kind, selected: str, metadata_only: bool) -> list[Object]:
        found: list[Object] = []
        for namespace in self._watched.namespaces.get(kind, ()):
            found += await self._cluster.list_selected(kind, namespace, selected, metadata_only)
        return found

    def _is_known(self, key: Key) -> bool:
        return key[0] in self._indexed and bool(list(self._watched.indexes.get(LLMSERVICE.plural, {}).get(key, ())))

    def _all_pods(self) -> Iterator[Object]:
        """Yield the pods that the watches know."""
        index = self._watched.indexes.get(POD.plural, {})
        for key in list(index):
            yield from index.get(key, ())

    def _pods(self, key: Key) -> Iterable[Object]:
        return self._watched.indexes.get(POD.plural, {}).get(key, ())

    def _addresses(self, key: Key) -> frozenset[str]:
        """Return the addresses of an LLMService's pods."""
        statuses = [pod.get("status") or {} for pod in self._pods(key)]
        return frozenset(each["ip"] for status in statuses for each in status.get("podIPs") or ())


def foreign_slice(body: Object, own: Collection[str]) -> Problem | None:
    """Return the problem of an EndpointSlice of another manager that sends clients to addresses that are not `own`."""
    if not any((port.get("name") or "") == PORT_NAME for port in body.get("ports") or ()):
        return None  # no request takes it
    ready = [each for each in body.get("endpoints") or () if (each.get("conditions") or {}).get("ready") is not False]
    theirs = sorted({address for each in ready for address in each.get("addresses") or ()} - set(own))
    if not theirs:
        return None
    metadata = body["metadata"]
    shown = ", ".join(theirs[:3]) + (" …" if len(theirs) > 3 else "")
    name = metadata["name"]
    return Problem(
        Reason.FOREIGN_ENDPOINTS,
        f"EndpointSlice {name}, made by {_manager(metadata)}, sends a part of the requests of Service "
        f"{metadata['labels'][SLICE_OF]} to {shown}, which is none of its pods: kubectl delete endpointslice {name}, "
        f"or take its label {SLICE_OF} off; if it is wanted, name its manager in the chart's value "
        "operator.endpointSliceManagers",
    )


def foreign_pod(metadata: Mapping[str, Any], service: str) -> Problem | None:
    """Return the problem of a pod of another workload that has all labels by which the Service selects its pods."""
    labels, controller = metadata.get("labels") or {}, other_controller(metadata)
    if controller is None or not selector(service).items() <= labels.items():
        return None
    whose = f"{controller['kind']} {controller['name']}"
    return Problem(
        Reason.FOREIGN_ENDPOINTS,
        f"the pods of {whose} have all labels that Service {service} selects, so that they get a part of its requests "
        f"while they are ready: take the label {SERVICE_LABEL} off the pod template that they are made from, or delete "
        f"what made {whose}",
    )


def _service_of(metadata: Mapping[str, Any]) -> str:
    """Return the LLMService that a pod was made for, by a label that is left; empty: it has neither."""
    labels = metadata.get("labels") or {}
    return str(labels.get(INSTANCE_LABEL) or labels.get(SERVICE_LABEL) or "")


def _manager(metadata: Mapping[str, Any]) -> str:
    """Return the name of what made an object, by its label, else by its managed fields."""
    if manager := (metadata.get("labels") or {}).get(_SLICE_MANAGER):
        return str(manager)
    managers = (str(each.get("manager") or "") for each in metadata.get("managedFields") or ())
    return next(filter(None, managers), "another client")
