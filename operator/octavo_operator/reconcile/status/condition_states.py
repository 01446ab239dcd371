"""Decides each condition of an LLMService from its facts: status, reason and message. Pure."""

from __future__ import annotations

from octavo_operator.api.conditions import ConditionState, ConditionType, Reason
from octavo_operator.api.status import MemoryStatus
from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.problem import Problem, counted
from octavo_operator.reconcile.status.adapter_states import adapter_problem, adapters_ready
from octavo_operator.reconcile.status.facts import Facts
from octavo_operator.reconcile.status.loading_status import LOADED, loading_status, next_phase
from octavo_operator.reconcile.status.memory_fit import memory_fit
from octavo_operator.reconcile.status.stalled import held_back, reconciling, stalled
from octavo_operator.render.deployment import MIN_READY_SECONDS
from octavo_operator.render.unsupported_fields import unsupported_fields


def condition_states(facts: Facts, memory: MemoryStatus | None, now: str) -> dict[ConditionType, ConditionState]:
    """Return each condition's status, reason and message."""
    return {
        ConditionType.READY: _ready(facts),
        ConditionType.AVAILABLE: _available(facts),
        ConditionType.PROGRESSING: _progressing(facts),
        ConditionType.DEGRADED: _degraded(facts),
        ConditionType.MODEL_LOADED: _model_loaded(facts),
        ConditionType.SCALING_ACTIVE: _scaling_active(facts),
        ConditionType.ROLLOUT_BLOCKED: _rollout_blocked(facts),
        ConditionType.MEMORY_FITS: _memory_fits(facts, memory),
        ConditionType.ADAPTERS_READY: _adapters_ready(facts),
        ConditionType.RECONCILING: reconciling(facts, now),
        ConditionType.STALLED: stalled(facts, now),
    }


def _memory_fits(facts: Facts, memory: MemoryStatus | None) -> ConditionState:
    if problem := facts.out_of_memory:  # the numbers do not know what else limits a pod, such as --kv-cache-memory
        said = problem == facts.pod_problem  # Degraded names one pod only
        why = "the message of condition Degraded says why" if said else problem.message
        return "False", Reason.DOES_NOT_FIT, f"a pod has too little memory: {why}"
    return memory_fit(facts.service.spec, memory, facts.unanswered)


def _stopped(facts: Facts) -> ConditionState | None:
    if facts.service.spec.suspend:
        return "False", Reason.SUSPENDED, "spec.suspend is true: no pod runs"
    if facts.desired == 0:
        held = f"another client has set the replicas of Deployment {facts.service.name} to 0"
        return "False", Reason.SCALED_TO_ZERO, f"{held if facts.scaled else 'spec.replicas is 0'}: no pod runs"
    if facts.result.ends and facts.ready == 0:
        return "False", Reason.BEING_DELETED, facts.result.ends
    return None


def _ready(facts: Facts) -> ConditionState:
    ready, stopped, result = facts.ready, _stopped(facts), facts.result
    if refused := result.problem or (result.unserved if ready == 0 or stopped else None):
        return "False", refused.reason, refused.message
    if stopped:
        return stopped
    if facts.unreached:
        return "False", facts.unreached.reason, facts.unreached.message
    cause = facts.pod_problem or facts.waits
    if cause and (ready == 0 or facts.out_of_time):
        return "False", cause.reason, cause.message
    if ready == 0:
        return "False", Reason.DEPLOYING, f"no replica is ready yet ({loading_status(facts).phase})"
    return "True", *_serving(facts, ready)


def _serving(facts: Facts, ready: int) -> tuple[Reason, str]:
    reason, message = _served_by(facts, ready)
    return (facts.misled.reason, f"{message}; {facts.misled.message}") if facts.misled else (reason, message)


def _served_by(facts: Facts, ready: int) -> tuple[Reason, str]:
    if facts.replaced or facts.only_scales:
        if ready >= facts.desired:
            return Reason.SERVING, f"{facts.desired} of {facts.desired} replicas serve {facts.service.served_name}"
        return Reason.FEWER_REPLICAS, f"{ready} of {facts.desired} replicas serve"
    return Reason.ROLLING_OUT, f"{counted(ready, 'replica serves', 'replicas serve')} while {_progress(facts)}"


def _progress(facts: Facts) -> str:
    return f"{facts.newest_ready} of {facts.desired} replicas of the newest revision are ready"


def _available(facts: Facts) -> ConditionState:
    if stopped := _stopped(facts):
        return stopped
    available = facts.available_replicas
    if available and facts.unreached:
        return "False", facts.unreached.reason, facts.unreached.message
    if available == 0:
        are_ready = counted(facts.ready, "replica is", "replicas are")
        later = f"Deployment {facts.service.name} counts a replica as available only after {MIN_READY_SECONDS} s"
        new = f"{are_ready} ready, but {later}"
        return "False", Reason.NO_READY_REPLICA, new if facts.ready else "no replica answers requests"
    return "True", Reason.SERVING, f"{available} of {facts.desired} replicas answer requests"


def _progressing(facts: Facts) -> ConditionState:
    if stands := _stands(facts):
        return stands
    if waits := facts.newest_waits or facts.refused_pods:
        return "True", waits.reason, waits.message
    rollout = facts.result.rollout
    if rollout.blocked and rollout.problem.reason == Reason.NEW_POD_FAILS:
        return "False", Reason.NEW_POD_FAILS, f"{_progress(facts)}; {rollout.problem.message}"
    if gone := facts.vanishing:
        return "False", gone.reason, f"{_progress(facts)}; {gone.message}"
    return "True", Reason.DEPLOYING, _how_far(facts)


def _stands(facts: Facts) -> ConditionState | None:
    """Return why no rollout is under way, whatever the pods do; None: one is."""
    if problem := facts.result.problem or facts.result.unserved:
        return "False", problem.reason, problem.message
    if held := held_back(facts):
        return held
    if facts.rolled_out and not facts.contested_pods:
        return "False", Reason.DEPLOYED, f"{facts.desired} of {facts.desired} replicas are of the newest revision"
    if problem := facts.contested_pods or (facts.late if facts.out_of_time else None):
        return "False", problem.reason, problem.message
    return None


def _how_far(facts: Facts) -> str:
    if facts.newest_ready >= facts.desired:  # old pods are still there, or the new ones are not available yet
        return _progress(facts)
    return f"{_progress(facts)}; the next one is {next_phase(facts)}"


def _degraded(facts: Facts) -> ConditionState:
    result, pending = facts.result, unsupported_fields(facts.service.spec)
    adapters = None if _stopped(facts) else adapter_problem(facts.adapters)
    unwatched = [Problem(Reason.RIGHTS_MISSING, f"not watched: {why}") for why in facts.unwatched.values()]
    # The one that keeps requests from the pods is part of that sentence.
    conflicts = (each for each in result.conflicts if not facts.unrouted or each.message not in facts.unrouted.message)
    kinds = (  # the worst first: it gives the reason
        *(result.problem, result.unserved, facts.unrouted, facts.pod_problem, result.refused, *unwatched),
        *(*conflicts, facts.contested_pods, adapters, facts.vanishing, *facts.other_problems),
    )
    found = list(dict.fromkeys(filter(None, kinds)))
    sentences = [each.message for each in found]
    if pending:
        sentences.append("accepted but not acted on by this version: " + "; ".join(map(str, pending)))
    wrong = bool(sentences)
    if facts.unknown:  # no fault: while an upgrade is under way every object has such fields, by their defaults
        sentences.append(f"ignored, since this version of the operator does not know it: {', '.join(facts.unknown)}")
    if wrong:
        return "True", found[0].reason if found else Reason.FIELDS_NOT_YET_ACTED_ON, "; ".join(sentences)
    nothing = f"nothing has failed; {facts.waits.message}" if facts.waits else "nothing is wrong"
    return "False", Reason.AS_EXPECTED, "; ".join([nothing, *sentences])


def _model_loaded(facts: Facts) -> ConditionState:
    if why := facts.unwatched.get(POD):
        return "Unknown", Reason.RIGHTS_MISSING, why
    loaded = sum(pod.phase in LOADED for pod in facts.pods)
    if loaded:
        return "True", Reason.LOADED, f"{loaded} of {len(facts.pods)} pods have loaded the model"
    return "False", Reason.NOT_LOADED, f"no pod has loaded the model yet ({loading_status(facts).phase})"


def _adapters_ready(facts: Facts) -> ConditionState:
    if facts.adapters and (stopped := _stopped(facts)):
        return stopped
    return adapters_ready(facts.adapters, max(facts.desired, len(facts.pods)), facts.unanswered)


def _scaling_active(facts: Facts) -> ConditionState:
    if facts.service.spec.suspend:
        return "False", Reason.SUSPENDED, "spec.suspend is true"
    if facts.scaled:
        return facts.scaled.scaling_active()
    if facts.stale_scaler and facts.desired:
        kind, name = facts.stale_scaler
        shows = f"kubectl get {kind.lower()} {name} -o yaml shows what keeps it"
        return (
            "False",
            Reason.AUTOSCALER_PENDING,
            f"waits until {kind} {name} is deleted, then sets {counted(facts.desired, 'replica', 'replicas')}; {shows}",
        )
    return "False", Reason.FIXED_REPLICAS, f"the number of replicas is fixed at {facts.desired} (spec.replicas)"


def _rollout_blocked(facts: Facts) -> ConditionState:
    state = facts.result.rollout
    return "True" if state.blocked else "False", state.problem.reason, state.problem.message
