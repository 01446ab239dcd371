"""Decisions about a rollout from one state of the cluster: pure functions, objects as Kubernetes reports them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType, LoadingPhase, Reason
from octavo_operator.api.llmservice import Rollout
from octavo_operator.api.names import DELETION_COST_ANNOTATION
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.status import RevisionStatus
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import NODE, POD, Kind
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.pods.placement import Placement, placement_of
from octavo_operator.reconcile.pods.pod_view import PodView, view
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.cordoned_nodes import cordoned_nodes
from octavo_operator.reconcile.rollout.deletion_costs import spare_pods_on
from octavo_operator.reconcile.rollout.rollout import RolloutState, revisions, rollout_state
from octavo_operator.reconcile.status.summarize import Result, summarize
from octavo_operator.render.deployment import progress_deadline, strategy
from tests.operator.golden import deployment as golden_deployment
from tests.operator.reconcile.status.test_summarize import GPU, IMAGE, NO_GPU, NOW, SERVING, pod, service
from tests.operator.reconcile.status.test_summarize import deployment as deployment_child

CREATED = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:01:00Z"


def at(seconds: float) -> str:
    """A time so many seconds after the surge pod was made."""
    return (datetime.fromisoformat(LATER) + timedelta(seconds=seconds)).isoformat()


def rollout(**fields: Any) -> Rollout:
    return Rollout.model_validate(fields)


def placement(**spec: Any) -> Placement:
    """Return the placement of a pod with one GPU, or with these requests."""
    requests = {"cpu": "4", "memory": "32Gi", GPU: "1", **spec.pop("requests", {})}
    return placement_of({"containers": [{"name": "engine", "resources": {"requests": requests}}], **spec})


def old(revision: str = "r1", phase: LoadingPhase = LoadingPhase.SERVING, **fields: Any) -> PodView:
    ready = phase == LoadingPhase.SERVING
    return PodView(
        **{
            "uid": "u",
            "revision": revision,
            "created": CREATED,
            "ready": ready,
            "ended": False,
            "phase": phase,
            "placement": placement(),
            **fields,
        }
    )


def surge(
    reason: Reason = Reason.WAITING_FOR_GPU, said: str = "1 Insufficient nvidia.com/gpu", **fields: Any
) -> PodView:
    waits = Problem(reason, f"pod new cannot be scheduled: {said}")
    known = {
        "uid": "u",
        "revision": "r2",
        "created": LATER,
        "ready": False,
        "ended": False,
        "phase": LoadingPhase.PENDING,
        "placement": placement(),
    }
    return PodView(**{**known, "waits": waits, "waits_since": LATER, **fields})


def live(surging: int = 1, total: int = 2, updated: int = 1, available: int = 1, seen: int = 2) -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "spec": {"strategy": {"rollingUpdate": {"maxSurge": surging, "maxUnavailable": 1 - surging}}},
        "status": {
            "observedGeneration": seen,
            "replicas": total,
            "updatedReplicas": updated,
            "availableReplicas": available,
        },
    }


def test_a_surge_pod_without_a_gpu_blocks_and_is_looked_at_again_when_its_time_is_over() -> None:
    now = rollout_state(rollout(), live(), [old(), surge()], at(100))
    assert (now.in_place, now.blocked, now.problem.reason) == (False, True, Reason.NO_GPU_FOR_SURGE)
    assert now.again == pytest.approx(201)
    assert "rollout.surgeTimeoutSeconds (300)" in now.problem.message
    assert "Insufficient nvidia.com/gpu" in now.problem.message


def test_after_its_time_auto_goes_on_in_place() -> None:
    now = rollout_state(rollout(surgeTimeoutSeconds=60), live(), [old(), surge()], at(60))
    assert now == RolloutState(in_place=True, problem=now.problem)
    assert now.problem.reason == Reason.WENT_IN_PLACE


def test_in_place_lasts_until_the_rollout_has_ended_and_then_it_surges_again() -> None:
    stages = [
        (live(surging=0), [old(), surge()]),  # the old pod is about to be stopped
        (live(surging=0, total=1, available=0), [surge(waits=None, waits_since="", phase=LoadingPhase.LOADING)]),
        (live(surging=0, total=1, available=1, seen=1), []),  # its controller has not seen the change yet
    ]
    for deployment, pods in stages:
        assert rollout_state(rollout(), deployment, pods, at(9999)).in_place
    assert rollout_state(rollout(), live(surging=0, total=1), [old("r2")], at(9999)) == RolloutState()


def test_in_place_survives_a_new_operator_that_remembers_nothing() -> None:
    """All that it needs is in the cluster: the strategy of the live Deployment."""
    assert rollout_state(rollout(), live(surging=0), [old()], at(0)).in_place


NO_SURGE_PODS = [
    ("nothing waits", [old(), old("r2")]),
    ("no pod holds a GPU", [surge()]),
    ("its own revision holds them: there are fewer GPUs than replicas", [old("r2"), surge()]),
    ("the other has ended", [old(ended=True), surge()]),
    ("it is the older one", [old("r2", created="2026-01-01T00:02:00Z"), surge(revision="r1")]),
    ("both wait", [surge(), surge(revision="r1", created=CREATED)]),
]


@pytest.mark.parametrize("pods", [row[1] for row in NO_SURGE_PODS], ids=[row[0] for row in NO_SURGE_PODS])
def test_what_is_no_surge_pod_without_a_gpu(pods: list[PodView]) -> None:
    assert rollout_state(rollout(), live(), pods, at(9999)) == RolloutState()


L4, H100 = {"gpu": "l4"}, {"gpu": "h100"}
BOTH = "0/3 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/gpu."
AMD = {"amd.com/gpu": "1"}
CLAIMED = "cannot allocate all claims"
CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
TAINTED = [{"key": "pool", "operator": "Exists"}]


def on(*names: str) -> dict[str, Any]:
    """A spec that asks for nodes of these names, as a label says."""
    terms = [{"matchExpressions": [{"key": "name", "operator": "In", "values": list(names)}]}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


NO_ROOM = [
    ("from CPU to GPU", placement(requests={GPU: "0"}), surge()),
    ("another pool", placement(nodeSelector=L4), surge(placement=placement(nodeSelector=H100))),
    ("a pool, after any node", placement(), surge(placement=placement(nodeSelector=H100))),
    ("other nodes by affinity", placement(**on("a")), surge(placement=placement(**on("b")))),
    ("another resource", placement(), surge(said="2 Insufficient amd.com/gpu.", placement=placement(requests=AMD))),
    ("more GPUs", placement(), surge(placement=placement(requests={GPU: "2"}))),
    ("more memory too", placement(), surge(said=BOTH, placement=placement(requests={"memory": "64Gi"}))),
    ("a claimed GPU after a counted one", placement(), surge(said=CLAIMED, placement=placement(resourceClaims=CLAIMS))),
    ("it does not tolerate the old one's node", placement(tolerations=TAINTED), surge()),
]  # fmt: skip


@pytest.mark.parametrize(("held", "new"), [row[1:] for row in NO_ROOM], ids=[row[0] for row in NO_ROOM])
def test_what_serves_is_not_ended_where_that_makes_no_room(held: Placement, new: PodView) -> None:
    for live_strategy in (live(), live(surging=0)):  # also one that had gone in place for an earlier change
        now = rollout_state(rollout(), live_strategy, [old(placement=held), new], at(9999))
        assert (now.in_place, now.blocked, now.problem.reason) == (False, True, Reason.NO_GPU_FOR_SURGE)
        assert "would not make room" in now.problem.message


ROOM = [
    ("all that is lacking is what the old one holds", placement(), surge(said=BOTH)),
    ("less of it", placement(requests={"memory": "64Gi"}), surge(said=BOTH)),
    ("more of what nothing lacks", placement(), surge(placement=placement(requests={"cpu": "16"}))),
    ("the same pool", placement(nodeSelector=L4, **on("a")), surge(placement=placement(nodeSelector=L4, **on("a")))),
    ("any node, after a pool", placement(nodeSelector=L4, **on("a")), surge()),
    ("the same claim", placement(resourceClaims=CLAIMS),
     surge(said=CLAIMED, placement=placement(resourceClaims=CLAIMS))),
]  # fmt: skip


@pytest.mark.parametrize(("held", "new"), [row[1:] for row in ROOM], ids=[row[0] for row in ROOM])
def test_it_goes_on_in_place_where_the_old_pods_end_surely_makes_room(held: Placement, new: PodView) -> None:
    assert rollout_state(rollout(), live(), [old(placement=held), new], at(9999)).in_place


CPU = "0/1 nodes are available: 1 Insufficient cpu."
ALONE = "1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode."
ELSEWHERE = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
CLAIM = frozenset({"good-cache"})
SCHEDULED = {"phase": LoadingPhase.PULLING, "claims": CLAIM}
OTHERS = [
    ("less CPU", old(), surge(Reason.UNSCHEDULABLE, CPU), Reason.NO_ROOM_FOR_SURGE, True),
    ("more CPU", old(), surge(Reason.UNSCHEDULABLE, CPU, placement=placement(requests={"cpu": "9"})),
     Reason.NO_ROOM_FOR_SURGE, False),
    ("a claim of one pod", old(), surge(Reason.UNSCHEDULABLE, ALONE), Reason.NO_ROOM_FOR_SURGE, True),
    ("no such node", old(), surge(Reason.UNSCHEDULABLE, ELSEWHERE), Reason.NO_ROOM_FOR_SURGE, False),
    ("a gate", old(), surge(Reason.SCHEDULING_GATED), Reason.SURGE_GATED, True),
    ("a claim of one node", old(claims=CLAIM), surge(Reason.WAITING_FOR_VOLUMES, **SCHEDULED),
     Reason.NO_VOLUME_FOR_SURGE, True),
    ("a claim that the old pod has not", old(), surge(Reason.WAITING_FOR_VOLUMES, **SCHEDULED),
     Reason.NO_VOLUME_FOR_SURGE, False),
]  # fmt: skip


@pytest.mark.parametrize(("before", "new", "reason", "helped"), [row[1:] for row in OTHERS], ids=[r[0] for r in OTHERS])
def test_whatever_a_surge_pod_waits_for_blocks_and_goes_in_place_where_that_helps(
    before: PodView, new: PodView, reason: Reason, helped: bool
) -> None:
    now = rollout_state(rollout(), live(), [before, new], at(100), exclusive=CLAIM)
    assert (now.in_place, now.blocked, now.problem.reason) == (False, True, reason)
    assert (now.again is not None) is helped
    assert rollout_state(rollout(), live(), [before, new], at(9999), exclusive=CLAIM).in_place is helped
    surging = rollout_state(rollout(strategy="Surge"), live(), [before, new], at(9999), exclusive=CLAIM)
    assert (surging.blocked, surging.problem.reason) == (True, reason)


def test_a_claim_that_pods_share_or_that_is_only_being_mounted_blocks_nothing_for_good() -> None:
    pods = [old(claims=CLAIM), surge(Reason.WAITING_FOR_VOLUMES, **SCHEDULED)]
    assert not rollout_state(rollout(), live(), pods, at(9999), exclusive=frozenset()).in_place
    assert rollout_state(rollout(), live(), pods, at(5), exclusive=CLAIM) == RolloutState()


QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: {}, used: {}, limited: {}'.format
REFUSALS = [
    (QUOTA("requests.nvidia.com/gpu=1", "requests.nvidia.com/gpu=1", "requests.nvidia.com/gpu=1"),
     Reason.NO_QUOTA_FOR_SURGE, True),
    (QUOTA("pods=1,requests.cpu=4", "pods=1,requests.cpu=4", "pods=1,requests.cpu=4"), Reason.NO_QUOTA_FOR_SURGE, True),
    (QUOTA("limits.memory=8Gi", "limits.memory=8Gi", "limits.memory=8Gi"), Reason.NO_QUOTA_FOR_SURGE, True),
    (QUOTA("limits.memory=9Gi", "limits.memory=8Gi", "limits.memory=8Gi"), Reason.NO_QUOTA_FOR_SURGE, False),
    (QUOTA("limits.memory=8Gi", "limits.memory=8Gi", "limits.memory=1Gi"), Reason.NO_QUOTA_FOR_SURGE, False),
    (QUOTA("pods=1", "pods=3", "pods=2"), Reason.NO_QUOTA_FOR_SURGE, False),  # it was lowered below its use
    (QUOTA("requests.memory=64Gi", "requests.memory=32Gi", "requests.memory=64Gi"), Reason.NO_QUOTA_FOR_SURGE, False),
    (QUOTA("gpus=two", "gpus=one", "gpus=two"), Reason.NO_QUOTA_FOR_SURGE, False),  # as a webhook may say
    ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', Reason.SURGE_REFUSED, False),
    ("requests: must be less than or equal to memory limit of 32Mi", Reason.SURGE_REFUSED, False),
]  # fmt: skip


@pytest.mark.parametrize(("said", "reason", "helped"), REFUSALS)
def test_a_surge_pod_that_may_not_be_made_blocks(said: str, reason: Reason, helped: bool) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": said, "lastTransitionTime": LATER}
    deployment = live(total=1, updated=0)
    deployment["status"]["conditions"] = [failure]
    resources = {"requests": {"cpu": "4", "memory": "32Gi", GPU: "1"}, "limits": {"memory": "8Gi"}}
    pods = [old(placement=placement_of({"containers": [{"resources": resources}]}))]
    now = rollout_state(rollout(), deployment, pods, at(100))
    assert (now.blocked, now.problem.reason) == (True, reason)
    assert said in now.problem.message
    assert ("set spec.resources.limits.memory, or change the LimitRange" in now.problem.message) is ("32Mi" in said)
    if reason == Reason.SURGE_REFUSED:  # in place, the serving pod would end for nothing
        assert "InPlace" not in now.problem.message
        assert "InPlace" not in rollout_state(rollout(strategy="Surge"), deployment, pods, at(100)).problem.message
    assert rollout_state(rollout(), deployment, pods, at(9999)).in_place is helped
    ending = [old(ended=True, placement=pods[0].placement)]
    going_in_place = {**deployment, "spec": live(surging=0)["spec"]}
    assert rollout_state(rollout(), going_in_place, ending, at(9999)).in_place, "while the old pod ends"
    grows = live(total=1, updated=1)  # no pod of another revision is left: more replicas, or none at all
    grows["status"]["conditions"] = [failure]
    assert not rollout_state(rollout(), grows, [old("r2")], at(9999)).blocked


@pytest.mark.parametrize("strategy", ["Auto", "Surge"])
def test_a_revision_whose_replica_set_is_refused_blocks_and_is_tried_again(strategy: str) -> None:
    """The Deployment's counters are still those of the revision before; a quota may be larger by now."""
    said = 'replicasets.apps "good-2" is forbidden: exceeded quota: few, requested: count/replicasets.apps=1, used: '
    condition = {"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": said}
    deployment = live(seen=1, total=1, updated=1)
    deployment["status"]["conditions"] = [{**condition, "lastTransitionTime": at(0)}]
    now = rollout_state(rollout(strategy=strategy), deployment, [old()], at(9999))
    assert (now.blocked, now.in_place, now.problem.reason) == (True, False, Reason.SURGE_REFUSED)
    assert "make room for count/replicasets.apps=1 in ResourceQuota few" in now.problem.message
    assert now.tried and now.retry
    first = rollout_state(rollout(strategy=strategy), deployment, [], at(5))
    assert (first.blocked, first.retry) == (False, 5)


@pytest.mark.parametrize("strategy", ["Auto", "Surge"])
def test_pods_of_a_first_rollout_that_were_refused_are_tried_again(strategy: str) -> None:
    """Every 10 s at first, later every minute: a ReplicaSet would see a higher quota after up to 16 minutes."""
    deployment = live(total=0, updated=0, available=0)
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": at(0)}
    deployment["status"]["conditions"] = [failure]
    moments = (0, 9, 10, 300, 359, 360)
    states = [rollout_state(rollout(strategy=strategy), deployment, [], at(seconds)) for seconds in moments]
    assert [each.retry for each in states] == [10, 1, 10, 60, 1, 60]
    assert states[0].tried == states[1].tried != states[2].tried
    assert states[3].tried == states[4].tried != states[5].tried
    assert not any(each.blocked or each.in_place for each in states)


def test_a_claim_that_is_missing_ends_no_pod_that_serves() -> None:
    """The new pod's claim is not there, or lost: the end of an old pod would not bring it back."""
    claims, missing = frozenset({"weights"}), 'persistentvolumeclaim "weights" not found'
    pods = [old(claims=claims), surge(Reason.WAITING_FOR_VOLUMES, missing, claims=claims)]
    state = rollout_state(rollout(), live(), pods, at(9999), claims)
    assert (state.blocked, state.in_place, state.problem.reason) == (True, False, Reason.NO_VOLUME_FOR_SURGE)


def test_a_node_with_as_many_pods_as_it_may_have_gets_room_by_the_end_of_one() -> None:
    full = surge(Reason.UNSCHEDULABLE, "0/1 nodes are available: 1 Too many pods.")
    assert rollout_state(rollout(), live(), [old(), full], at(9999)).in_place


@pytest.mark.parametrize("said", [7200, 250, -7200], ids=["ahead", "a little ahead", "behind"])
def test_a_node_whose_clock_is_wrong_ends_no_pod_too_early_or_late(said: float) -> None:
    """It says since when a pod waits for its volumes."""
    claims, name = frozenset({"weights"}), "PodReadyToStartContainers"
    condition = {"type": name, "status": "False", "lastTransitionTime": at(said).replace("+00:00", "Z")}
    new = {
        "metadata": {"name": "new", "creationTimestamp": LATER, "labels": {"pod-template-hash": "r2"}},
        "spec": {"nodeName": "n2", "volumes": [{"persistentVolumeClaim": {"claimName": "weights"}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "True"}, condition]},
        "statusChanged": LATER,
    }
    pods = [old(claims=claims), view(new, GPU)]
    soon, late = (rollout_state(rollout(), live(), pods, at(seconds), exclusive=claims) for seconds in (100, 301))
    assert (soon.in_place, soon.problem.reason) == (False, Reason.NO_VOLUME_FOR_SURGE)
    assert late.in_place


def test_one_old_pod_that_makes_room_is_enough() -> None:
    pods = [old(placement=placement(requests={GPU: "0"})), old("r0"), surge()]
    assert rollout_state(rollout(), live(), pods, at(9999)).in_place


def test_a_pod_is_counted_as_the_scheduler_counts_it_also_from_what_the_watch_keeps() -> None:
    def container(memory: str, **fields: Any) -> dict[str, Any]:
        return {"name": "x", "image": "i", "resources": {"requests": {"memory": memory}, "limits": {}}, **fields}

    spec = {
        "initContainers": [container("1Gi", restartPolicy="Always"), container("5Gi"), container("2Gi")],
        "containers": [container("3Gi"), container("1Gi")],
        "overhead": {"memory": "512Mi"},
        "nodeSelector": L4,
        "tolerations": TAINTED,
        "resourceClaims": CLAIMS,
        **on("a"),
    }
    kept = trimmed(POD, {"metadata": {"name": "p"}, "spec": spec})
    assert placement_of(kept["spec"]) == placement_of(spec)
    assert placement_of(spec).requests == {"memory": parse_quantity("6.5Gi")}
    assert view(kept, GPU).placement == placement_of(spec)


def test_an_old_pod_that_crashes_holds_its_gpu_as_well() -> None:
    crashing = old(phase=LoadingPhase.PULLING, problem=Problem(Reason.CRASH_LOOP, "x"))
    assert rollout_state(rollout(), live(), [crashing, surge()], at(9999)).in_place


FAILING = [
    ({}, [], "they go on serving until the cause is fixed"),
    ({"strategy": "Surge"}, [], "they go on serving"),
    ({"strategy": "InPlace"}, [], "no pod of this revision starts"),
    ({"paused": True}, [], ""),
    ({}, [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}], ""),
]


@pytest.mark.parametrize(("fields", "conditions", "words"), FAILING)
def test_a_new_pod_that_fails_at_each_start_holds_the_rollout_back(
    fields: dict[str, Any], conditions: list[Any], words: str
) -> None:
    """A pod that crashes long after its rollout has ended holds none back."""
    problem = Problem(Reason.OUT_OF_MEMORY, "pod new ended with exit code 4")
    failing = surge(waits=None, waits_since="", phase=LoadingPhase.FAILED, problem=problem, stuck=True)
    deployment = live()
    deployment["status"]["conditions"] = conditions
    pods = [failing] if fields.get("strategy") == "InPlace" else [old(), failing]
    now = rollout_state(rollout(**fields), deployment, pods, at(9999))
    assert (now.blocked, now.problem.reason) == (bool(words), Reason.NEW_POD_FAILS if words else Reason.NOT_BLOCKED)
    assert words in now.problem.message
    assert problem.message not in now.problem.message, "Degraded says it"


def test_a_failing_pod_does_not_end_a_rollout_in_place() -> None:
    failing = surge(waits=None, phase=LoadingPhase.FAILED, problem=Problem(Reason.CRASH_LOOP, "x"), stuck=True)
    now = rollout_state(rollout(), live(surging=0, total=1, available=0), [failing], at(9999))
    assert (now.in_place, now.blocked, now.problem.reason) == (True, True, Reason.NEW_POD_FAILS)


CORDONED = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) were unschedulable."


@pytest.mark.parametrize(
    ("cordoned", "in_place"), [((), True), (("n1",), True), (("n1", "n2"), False)], ids=["none", "one", "all"]
)
def test_no_pod_ends_for_a_new_one_on_a_cordoned_node(cordoned: tuple[str, ...], in_place: bool) -> None:
    pods = [old(node="n1"), old(node="n2"), surge(said=CORDONED)]
    now = rollout_state(rollout(), live(), pods, at(9999), cordoned=frozenset(cordoned))
    assert now.in_place is in_place
    if not in_place:
        assert (now.blocked, now.problem.reason) == (True, Reason.NO_GPU_FOR_SURGE)
        assert "kubectl uncordon n1 n2 if a new pod may run there" in now.problem.message


@pytest.mark.parametrize(("cordoned", "in_place"), [(frozenset(), True), (frozenset({"n2"}), False)])
def test_a_rollout_in_place_does_not_end_the_last_old_pods_on_cordoned_nodes(
    cordoned: frozenset[str], in_place: bool
) -> None:
    pods = [old(node="n2"), surge(waits=None, phase=LoadingPhase.SERVING, node="n1")]
    now = rollout_state(rollout(), live(surging=0, total=2, available=2), pods, at(9999), cordoned=cordoned)
    assert now.in_place is in_place


@pytest.mark.parametrize(("replicas", "in_place"), [(2, True), (3, False), (4, False)])
def test_it_does_not_say_that_it_goes_on_in_place_where_replicas_were_added_that_have_no_room(
    replicas: int, in_place: bool
) -> None:
    """The Deployment's controller ends no old pod while it lacks more replicas than maxUnavailable."""
    deployment = live(total=replicas + 1)
    deployment["spec"]["replicas"] = replicas
    now = rollout_state(rollout(), deployment, [old(), old(), surge(), surge()], at(9999))
    assert (now.in_place, now.blocked, now.again) == (in_place, not in_place, None)
    if not in_place:
        assert now.problem.reason == Reason.NO_GPU_FOR_SURGE
        assert f"{replicas} replicas are asked for and 2 run, so that" in now.problem.message
        assert "ask for fewer replicas" in now.problem.message
        fixed = rollout_state(rollout(strategy="Surge"), deployment, [old(), old(), surge(), surge()], at(9999))
        assert f"{replicas} replicas are asked for and 2 run" in fixed.problem.message
    more = rollout_state(rollout(maxUnavailable=2), deployment, [old(), old(), surge(), surge()], at(9999))
    assert more.in_place is (replicas < 4)


def test_an_old_pod_that_crashes_ends_for_a_new_one_that_a_quota_refuses() -> None:
    said = 'pods "x" is forbidden: exceeded quota: one, requested: pods=1, used: pods=1, limited: pods=1'
    deployment = live(total=1, updated=0, available=0)
    deployment["spec"]["replicas"] = 1
    deployment["status"]["conditions"] = [
        {"type": "ReplicaFailure", "status": "True", "message": said, "lastTransitionTime": LATER}
    ]
    assert rollout_state(rollout(), deployment, [old(phase=LoadingPhase.FAILED)], at(9999)).in_place


@pytest.mark.parametrize("remaining", [[], [old(node="n2")]], ids=["none", "one"])
def test_a_rollout_in_place_whose_room_something_else_took_is_blocked(remaining: list[PodView]) -> None:
    """The Deployment's own deadline allows for the time that a model takes to load."""
    deployment = live(surging=0, total=1 + len(remaining), available=len(remaining))
    deployment["spec"]["replicas"] = 1 + len(remaining)
    step = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "lastUpdateTime": at(300)}
    deployment["status"]["conditions"] = [step]
    before, after = (
        rollout_state(rollout(drainTimeoutSeconds=20), deployment, [*remaining, surge()], at(seconds))
        for seconds in (310, 400)
    )
    assert (before.in_place, before.blocked, before.problem.reason) == (True, False, Reason.WENT_IN_PLACE)
    assert before.again is not None and 310 + before.again < 400
    assert (after.in_place, after.blocked, after.again) == (True, True, None)
    assert "its room cannot be used" in after.problem.message
    assert "or more replicas are asked for than there is room for" in after.problem.message  # which looks the same
    deployment["spec"]["replicas"] = len(remaining)  # it has not acted yet: an old pod is about to end
    assert not rollout_state(rollout(), deployment, [*remaining, surge()], at(400)).blocked


@pytest.mark.parametrize("strategy", ["Auto", "Surge"])
@pytest.mark.parametrize("cordoned", [{"n1"}, {"n1", "n2"}], ids=["one", "all"])
def test_in_place_is_not_advised_where_all_old_pods_run_on_cordoned_nodes(strategy: str, cordoned: set[str]) -> None:
    """The serving pods would end for nothing."""
    wants_more = surge(said=CORDONED, placement=placement(requests={GPU: "2"}))
    pods = [old(node="n1"), old(node="n2"), wants_more]
    problem = rollout_state(rollout(strategy=strategy), live(), pods, at(9999), cordoned=frozenset(cordoned)).problem
    assert f"kubectl uncordon {' '.join(sorted(cordoned))} if" in problem.message
    assert ("InPlace" in problem.message) is (cordoned == {"n1"})


class Nodes:
    """Nodes that can be read or not, and which of them were."""

    def __init__(self, allowed: bool = True, refusal: ApiError | None = None, **nodes: dict[str, Any]) -> None:
        self.allowed, self.refusal, self.nodes, self.read = allowed, refusal, nodes, list[str]()

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        assert (verb, kind, namespace) == ("get", NODE, "")
        return self.allowed

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        self.read.append(name)
        if self.refusal:
            raise self.refusal
        return self.nodes.get(name)


async def test_nodes_are_read_only_where_the_scheduler_found_cordoned_ones() -> None:
    pods = [old(node="n1"), old(node="n2"), old(node="n3"), old(node="n4", ended=True), surge(said=CORDONED)]
    nodes = Nodes(n1={"spec": {"unschedulable": True}}, n2={"spec": {}})
    assert await cordoned_nodes(nodes, pods) == {"n1"}
    assert nodes.read == ["n1", "n2", "n3"]
    spared = Nodes(n1={"spec": {"unschedulable": True}})
    assert await cordoned_nodes(spared, [old(node="n1", is_spared=True)]) == {"n1"}
    for unread, asked in ((Nodes(allowed=False), pods), (Nodes(), [*pods[:4], surge()])):
        assert (await cordoned_nodes(unread, asked), unread.read) == (frozenset(), [])
    for status, refused in ((403, True), (500, False)):  # the first where the API server does not say what it allows
        failing = cordoned_nodes(Nodes(refusal=ApiError(status, "", "nodes")), pods)
        with contextlib.nullcontext() if refused else pytest.raises(ApiError):
            assert await failing == frozenset()


class Writer:
    """Writes annotations of pods, by name; refuses those of `refused`."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.written = refused, dict[str, Any]()

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Any, subresource: str = "") -> None:
        assert (kind, namespace, patch["metadata"]["uid"]) == (POD, "llm", f"uid-{name}")
        if name == self.refused:
            raise ApiError(403, "Forbidden", "no right")
        self.written[name] = patch["metadata"]["annotations"]


@pytest.mark.parametrize("refused", ["", "b"])
async def test_pods_on_cordoned_nodes_end_last(refused: str) -> None:
    """A ReplicaSet would choose by itself, and the new pod would find no room where the old one was."""

    def on(node: str, name: str, cost: str = "", **metadata: str) -> dict[str, Any]:
        known = {"name": name, "namespace": "llm", "uid": f"uid-{name}", **metadata}
        return {"metadata": known, "spec": {"nodeName": node}, "deletionCost": cost}

    pods = [on("n1", "a"), on("n2", "b"), on("n2", "c"), on("n2", "d", "-5"), on("n2", "e", deletionTimestamp="now")]
    writer = Writer(refused)
    await spare_pods_on({"n2", "n3"}, writer, pods)
    assert writer.written == {name: {DELETION_COST_ANNOTATION: "1"} for name in ("b", "c") if name != refused}


@pytest.mark.parametrize(("said", "advised"), [("1 node(s) were unschedulable", False), ("1 Insufficient cpu", True)])
def test_in_place_is_advised_only_where_room_would_help(said: str, advised: bool) -> None:
    """On a cordoned node the serving pod would end for nothing."""
    wants_more = placement(requests={"cpu": "8"})
    new = surge(Reason.UNSCHEDULABLE, said, placement=wants_more)
    for fields in ({}, {"strategy": "Surge"}):
        message = rollout_state(rollout(**fields), live(), [old(), new], at(100)).problem.message
        assert ("InPlace" in message) is advised


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"strategy": "Surge"}, (False, True, None)),  # says so, and waits
        ({"strategy": "InPlace"}, (False, False, None)),  # is in place anyway
        ({"maxSurge": 0, "maxUnavailable": 1}, (False, False, None)),
        ({"paused": True}, (False, False, None)),
    ],
)
def test_only_auto_goes_in_place_by_itself(fields: dict[str, Any], expected: tuple[bool, bool, None]) -> None:
    now = rollout_state(rollout(**fields), live(), [old(), surge()], at(9999))
    assert (now.in_place, now.blocked, now.again) == expected


def test_the_condition_says_what_happens() -> None:
    pods = (pod("old", container=SERVING, revision="r1"), pod("new", revision="r2", **NO_GPU))
    views = [view(each, GPU) for each in pods]
    now = rollout_state(rollout(), live(), views, NOW)
    status = summarize(
        service(), Observation({}, deployment_child(ready=1, total=2), pods), IMAGE, Result(rollout=now), NOW
    )
    found = next(each for each in status.conditions if each.type == ConditionType.ROLLOUT_BLOCKED)
    assert (found.status, found.reason) == ("True", Reason.NO_GPU_FOR_SURGE)


RENDERED = [
    ({}, False, (1, 0)),
    ({}, True, (0, 1)),
    ({"maxSurge": 3, "maxUnavailable": 2}, False, (3, 2)),
    ({"maxSurge": 3, "maxUnavailable": 2}, True, (0, 2)),
    ({"strategy": "InPlace"}, False, (0, 1)),
    ({"strategy": "Surge", "maxSurge": 2}, False, (2, 0)),
]


@pytest.mark.parametrize(("fields", "in_place", "expected"), RENDERED)
def test_every_field_of_a_strategy_reaches_the_deployment(
    fields: dict[str, Any], in_place: bool, expected: tuple[int, int]
) -> None:
    surging, unavailable = expected
    rendered = strategy(rollout(**fields), in_place)
    assert rendered == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surging, "maxUnavailable": unavailable},
    }


def test_a_rollout_is_not_given_up_while_it_may_still_wait() -> None:
    fields = {"startupTimeoutSeconds": 100, "drainTimeoutSeconds": 1000, "surgeTimeoutSeconds": 500}
    assert progress_deadline(rollout(**fields, strategy="Surge")) > 100
    assert progress_deadline(rollout(**fields, strategy="InPlace")) > 100 + 1000
    assert progress_deadline(rollout(**fields)) > 100 + 1000 + 500


def test_a_paused_rollout_reaches_the_deployment() -> None:
    assert golden_deployment("paused")["spec"]["paused"] is True


def test_the_revisions_are_those_that_serve_and_come() -> None:
    crashed = surge(waits=None, waits_since="", phase=LoadingPhase.PULLING)
    assert revisions({}, [crashed, old()], "r2") == RevisionStatus(current="r1", updated="r2")
    both_ready = [old("r2", created=LATER), old("r1")]
    found = revisions({"status": {"collisionCount": 1}}, both_ready, "r2")
    assert found == RevisionStatus(current="r1", updated="r2", collision_count=1)
    assert revisions({}, [], "") is None


def refused(seen: int = 2, **counts: int) -> dict[str, Any]:
    """A Deployment whose new pods the API server refuses."""
    found = live(surging=0, seen=seen, **counts)
    found["spec"]["replicas"] = 1
    condition = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: one, requested: pods=1"}
    found["status"]["conditions"] = [condition]
    return found


def test_in_place_lasts_though_no_pod_is_left_and_refused_pods_are_tried_again_every_ten_seconds() -> None:
    """The ReplicaSet itself waits for minutes after it was refused, and the annotation's change wakes it."""
    none_left = refused(total=0, updated=0, available=0)
    states = [rollout_state(rollout(), none_left, [], at(seconds)) for seconds in (0, 9, 10)]
    assert all(each.in_place for each in states)
    assert [each.retry for each in states] == [10, 1, 10]
    assert states[0].tried == states[1].tried == LATER.replace("Z", "+00:00")
    assert states[2].tried == at(10)


def test_a_deployment_that_is_scaled_to_nothing_has_ended_its_rollout() -> None:
    none_wanted = refused(total=0, updated=0, available=0)
    none_wanted["spec"]["replicas"] = 0
    assert rollout_state(rollout(), none_wanted, [], at(0)) == RolloutState()
