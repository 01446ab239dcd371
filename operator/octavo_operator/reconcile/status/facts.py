"""The facts that decide an LLMService's conditions: the spec, the Deployment, its pods, and a reconcile's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.resource import LLMService
from octavo_operator.api.status import AdapterStatus
from octavo_operator.reconcile.advice import advice
from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.pods.load_report import LoadReport
from octavo_operator.reconcile.pods.pod_view import PodView, condition_of
from octavo_operator.reconcile.pods.refused_pods import refusal_of
from octavo_operator.reconcile.problem import Problem, counted
from octavo_operator.reconcile.rollout.rollout import RolloutState, count_of, is_replaced, is_rolled_out
from octavo_operator.reconcile.status.autoscaling import Scaling
from octavo_operator.render.deployment import progress_deadline

PATIENCE_SECONDS = 45.0
"""Seconds after which a pod that waits for a node or for its volumes is stalled; usually both take seconds."""


@dataclass(frozen=True)
class Result:
    """The result of a reconcile: field conflicts, the rollout's state, and objects that were not applied."""

    problem: Problem | None = None
    """What kept the operator from applying anything."""
    unserved: Problem | None = None
    """What the API server says of a child that it refused and without which nothing serves."""
    refused: Problem | None = None
    """The same of the other children that it refused."""
    conflicts: Sequence[Problem] = ()
    """One for each child over whose fields there is a conflict."""
    conflict_of_pods: Problem | None = None
    """The one of these that is over the Deployment's pod template or replicas, or says that it keeps being deleted."""
    route_conflict: str = ""
    """The sentence of a conflict over the Service's fields; empty: there is none."""
    rollout: RolloutState = field(default_factory=RolloutState)
    no_scaler: str = ""
    """Why there is no autoscaler though one is wanted, in a sentence."""
    missing_claims: frozenset[str] = frozenset()
    """The claims of adapters that do not exist."""
    unwatched: Mapping[Kind, str] = field(default_factory=dict)
    """The kinds that the reconcile needs and the operator may not watch, each with a sentence."""
    ends: str = ""
    """That the LLMService is being deleted, in a sentence; empty: it is not."""


@dataclass(frozen=True)
class Facts:
    """The facts that conditions are decided from."""

    service: LLMService
    desired: int
    deployment: Mapping[str, Any]
    pods: Sequence[PodView]
    """Those that have not ended, in the order in which their problems count: those of the newest revision first, of a
    revision those that are stuck, and of these the youngest."""
    newest: str
    """The newest revision."""
    result: Result
    scaled: Scaling | None = None
    reports: Mapping[str, LoadReport] = field(default_factory=dict)
    adapters: Sequence[AdapterStatus] = ()
    unknown: Sequence[str] = ()
    stale_scaler: tuple[str, str] | None = None
    """An autoscaler that is no longer wanted and still there."""
    unreached: Problem | None = None
    unobserved: Problem | None = None
    changed_template: Problem | None = None
    """The problem that others change the Deployment's pod template again and again."""
    same_template: bool = False
    """Whether the Deployment's pod template is the one on which its controller has acted."""
    lost_claim: Problem | None = None
    failing: Problem | None = None
    """The problem that pods of the newest revision end for good, again and again."""
    vanishing: Problem | None = None
    """The problem that pods go again and again, and do not say why."""
    other_problems: Sequence[Problem] = ()
    """Problems with objects that do not keep a pod from serving, such as others' EndpointSlices."""
    unwatched: Mapping[Kind, str] = field(default_factory=dict)
    pods_known: bool = True
    """Whether the operator may read pods."""
    unanswered: str = ""
    """Why the operator cannot reach a pod that serves, in a sentence; empty: it can."""
    node_wait: float = PATIENCE_SECONDS
    """Seconds for which a pod may find no node before it is stalled."""

    @property
    def ready(self) -> int:
        """The number of ready replicas that clients reach."""
        return 0 if self.unreached else self.ready_replicas

    @property
    def ready_replicas(self) -> int:
        """The number of replicas that are ready both by their Deployment and by the pods: either may be behind.

        Without the right to read pods, only the Deployment says it.
        """
        return self._ready_by_both(self.count("readyReplicas"), self.pods)

    @property
    def available_replicas(self) -> int:
        """The number of ready replicas that have been ready for as long as the Deployment asks."""
        return min(self.count("availableReplicas"), self.ready_replicas)

    @property
    def newest_ready(self) -> int:
        """The number of wanted replicas that are ready and of the newest revision; there are more while some leave."""
        ready = min(self.ready_replicas, self.count("updatedReplicas"), self.desired)
        return self._ready_by_both(ready, [pod for pod in self.pods if pod.revision == self.newest])

    def _ready_by_both(self, counted: int, pods: Sequence[PodView]) -> int:
        """Return how many of the replicas `counted` by the Deployment are ready by their `pods` too."""
        return min(counted, sum(pod.ready for pod in pods)) if self.pods_known else counted

    def count(self, name: str) -> int:
        """Return a counter of the Deployment's status, which omits zeros."""
        return count_of(self.deployment, name)

    @property
    def replaced(self) -> bool:
        """True if all pods are of the newest revision, and no old one is left."""
        return is_replaced(self.deployment, self.desired)

    @property
    def only_scales(self) -> bool:
        """True if all pods that there are have the newest revision, and another number of them is wanted.

        Until the Deployment's controller has acted on another number, its status is of the number before.
        """
        there = self.count("replicas")
        if self.same_template:
            return there == self.count("updatedReplicas")
        return there != self.desired and is_replaced(self.deployment, there)

    @property
    def rolled_out(self) -> bool:
        """True if all pods are of the newest revision and available, and no old one is left."""
        return is_rolled_out(self.deployment, self.desired)

    @property
    def pod_problem(self) -> Problem | None:
        """Return the first problem of the pods, the claim and the Deployment; None: there is none.

        Pods that are late for no reason of their own come last: what they wait for says more than that they are late.
        """
        found = [pod.problem for pod in self.pods if pod.problem]
        failing = None if self.rolled_out else self.failing
        found += [each for each in (failing, self.refused_pods, self.lost_claim, self.unobserved) if each]
        if self.out_of_time:
            found.append(self.late)
        return next(iter(found), None)

    @property
    def out_of_memory(self) -> Problem | None:
        """Return the problem that a pod of the newest revision ended because it had too little memory."""
        problems = [self.failing, *(pod.problem for pod in self.pods if pod.revision == self.newest)]
        return next((each for each in problems if each and each.reason == Reason.OUT_OF_MEMORY), None)

    @property
    def changed_by_admission(self) -> Problem | None:
        """Return the problem that a Deployment has other replicas than it was applied with just now.

        What admission changes is no conflict of two managers: a write would be changed in the same way again.
        """
        there, result = (self.deployment.get("spec") or {}).get("replicas"), self.result
        unapplied = result.problem or result.unserved or result.refused or result.conflicts or result.ends
        if self.scaled or self.stale_scaler or unapplied or there in (None, self.desired):
            return None
        return Problem(
            Reason.FIELD_CONFLICT,
            f"Deployment {self.service.name} has {counted(there, 'replica', 'replicas')} though it was applied with "
            f"{self.desired}: an admission webhook or policy changes the number; have the Deployment exempted, or "
            "change spec.replicas",
        )

    @property
    def contested_pods(self) -> Problem | None:
        """Return the problem that another client wants other pods, or more or fewer of them."""
        return self.result.conflict_of_pods or self.changed_by_admission or self.changed_template

    @property
    def refused_pods(self) -> Problem | None:
        """The refusal of the API server to make pods; None: there is none."""
        refusal = refusal_of(self.deployment)
        if refusal is None:
            return None
        others = "kubectl get events shows whether others followed"
        first = f"Kubernetes reports the first refusal, of {refusal.since}; {others}"
        sentence = f"pods cannot be created: {advice(refusal.message)}"
        return Problem(Reason.POLICY_DENIED, f"{sentence} ({first})" if refusal.since else sentence)

    @property
    def waits(self) -> Problem | None:
        """The reason why a pod waits, if one does; first that of a lost node, which has taken replicas that served."""
        waits = [pod.waits for pod in self.pods if pod.waits]
        return min(waits, key=lambda each: each.reason != Reason.NODE_LOST, default=None)

    @property
    def newest_waits(self) -> Problem | None:
        """The reason why the rollout does not go on: that of a pod of the newest revision, if one waits."""
        return next((pod.waits for pod in self.pods if pod.waits), None)

    @property
    def misled(self) -> Problem | None:
        """Return the problem that a part of the requests goes elsewhere; None: there is none."""
        return next((each for each in self.other_problems if each.reason == Reason.FOREIGN_ENDPOINTS), None)

    @property
    def unrouted(self) -> Problem | None:
        """Return the problem that the Service has led to no ready pod for longer than it takes to route to one."""
        return self.unreached if self.unreached and self.unreached.reason == Reason.NO_ENDPOINTS else None

    @property
    def out_of_time(self) -> bool:
        """Return True if the Deployment has exceeded its progress deadline."""
        return condition_of(self.deployment, "Progressing").get("reason") == "ProgressDeadlineExceeded"

    @property
    def late(self) -> Problem:
        """Return the problem of a rollout that has exceeded the Deployment's progress deadline."""
        limit = progress_deadline(self.service.spec.rollout)
        knob = "raise spec.rollout.startupTimeoutSeconds if the model needs longer to load"
        cause = self.newest_waits.message if self.newest_waits else knob
        return Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, f"no progress for {limit} s; {cause}")
