"""Errors in spec.podTemplate for which the API server would refuse the pods, though it accepts the LLMService."""

from __future__ import annotations

from octavo_operator.api.resource import FieldError, LLMService
from octavo_operator.api.value_at import value_at
from octavo_operator.render.deployment import grace_period, pod_template

_GRACE = "terminationGracePeriodSeconds"


def pod_template_problems(llmservice: LLMService) -> list[FieldError]:
    """Return one problem for each container whose pause before it is stopped is longer than the pod's time to end.

    The patch may put anything in the place of any field; the API server judges that.
    """
    template = pod_template(llmservice, "any")
    grace = value_at(template, int, "spec", _GRACE)
    if grace is None:
        return []
    pauses = {}
    for container in value_at(template, list, "spec", "containers") or ():
        if seconds := value_at(container, int, "lifecycle", "preStop", "sleep", "seconds"):
            pauses[str(container.get("name"))] = seconds
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
