"""Errors in spec.podTemplate for which the API server would refuse the pods, though it accepts the LLMService."""

from __future__ import annotations

from octavo_operator.api.resource import FieldError, LLMService
from octavo_operator.render.deployment import grace_period, pod_template

_GRACE = "terminationGracePeriodSeconds"


def pod_template_problems(llmservice: LLMService) -> list[FieldError]:
    """Return one problem for each container whose pause before it is stopped is longer than the pod's time to end."""
    pod = pod_template(llmservice, "any")["spec"]
    grace = pod.get(_GRACE)
    if not isinstance(grace, int):
        return []
    pauses = {}
    for container in pod.get("containers") or ():
        sleep = ((container.get("lifecycle") or {}).get("preStop") or {}).get("sleep") or {}
        pauses[container.get("name")] = sleep.get("seconds") or 0
    drain = llmservice.spec.rollout.drain_timeout_seconds
    return [
        FieldError(
            f"spec.podTemplate.spec.{_GRACE}",
            f"{grace} is less than the {seconds} s that container {name} pauses before it is stopped (preStop), so the "
            f"API server refuses the pods: omit it (it is {grace_period(llmservice.spec.rollout)} then), or set it to "
            f"{seconds} and, for answers that are being given, rollout.drainTimeoutSeconds ({drain}) at least",
        )
        for name, seconds in pauses.items()
        if seconds > grace
    ]
