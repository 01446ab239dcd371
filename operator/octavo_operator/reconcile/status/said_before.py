"""Finds what the operator has said about pods that are gone, so that one that has just started says so too. Pure.

Nothing else tells of such pods: the memory of `Disruptions` and `DeletedPods` ends with the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.problem import Problem

_SENTENCES = {
    Reason.PREEMPTED: re.compile(r"pod \S+ (?:on node \S+ )?was preempted at .*?, or end something else there"),
    Reason.EVICTED: re.compile(r"pods are ended before they serve, .*?\(spec\.scheduling\.tolerations\)"),
    Reason.PODS_DELETED: re.compile("pods are deleted again and again since .*? audit log names"),
}
"""Their problems, as they stand in the message of the condition Degraded, perhaps among others."""


def said_before(service: Mapping[str, Any], found: Sequence[Problem]) -> list[Problem]:
    """Return the problems that the status of `service` has for its present spec, and of whose kind none is `found`."""
    generation, known = service["metadata"].get("generation"), {each.reason for each in found}
    messages = [
        each["message"]
        for each in value_at(service.get("status"), list, "conditions") or ()
        if each["type"] == ConditionType.DEGRADED and each["status"] == "True"
        if each.get("observedGeneration") == generation and isinstance(each.get("message"), str)
    ]
    return [
        Problem(reason, sentence[0])
        for reason, pattern in _SENTENCES.items()
        if reason not in known
        for message in messages
        if (sentence := pattern.search(message))
    ]
