"""Computes replicas from a load as a HorizontalPodAutoscaler does: proposal, stabilization, rates. Pure.

After pkg/controller/podautoscaler of Kubernetes 1.36, for external metrics with a target of AverageValue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 0.1
"""A load that differs from its target by no more changes nothing."""
_LONGEST_SECONDS = 3600.0  # of a stabilization window and of a policy's period


@dataclass
class History:
    """The proposals, and the changes of replicas that were made, each with its time in seconds; the newest last."""

    proposals: list[tuple[float, int]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)

    def forget_before(self, now: float) -> None:
        """Forget proposals and changes that are older than every stabilization window and period."""
        self.proposals = [each for each in self.proposals if now - each[0] <= _LONGEST_SECONDS]
        self.changes = [each for each in self.changes if now - each[0] <= _LONGEST_SECONDS]


@dataclass(frozen=True)
class Decision:
    """The replicas to have, and the reason of a HorizontalPodAutoscaler's condition that explains them."""

    replicas: int
    reason: str


def proposal(current: int, loads: Sequence[tuple[float, float]]) -> int:
    """Return the number of replicas for the largest of `loads`, each a sum over all pods and its target per replica."""
    return max(_one_proposal(current, total, target) for total, target in loads)


def _one_proposal(current: int, total: float, target: float) -> int:
    if current and abs(total / (target * current) - 1) <= TOLERANCE:
        return current
    return math.ceil(total / target)


def decide(
    current: int, proposed: int, floor: int, most: int, behavior: Mapping[str, Any], history: History, now: float
) -> Decision:
    """Return the replicas to have after `proposed` was computed; takes it into the `history`.

    The change is not in the history before the caller has made it: one that is refused uses up no policy.
    """
    history.forget_before(now)
    if not history.proposals:  # a new leader: what is there was wanted until now
        history.proposals.append((now, current))
    history.proposals.append((now, proposed))
    wanted, reason = _stabilized(current, proposed, behavior, history, now)
    limit = _limit(current, wanted, behavior, history, now)
    if limit != wanted:
        reason = "ScaleUpLimit" if wanted > current else "ScaleDownLimit"
    bounded = min(max(limit, floor), most)
    if bounded == most and max(limit, proposed) > most:
        reason = "TooManyReplicas"
    elif bounded == floor and min(limit, proposed) < floor:
        reason = "TooFewReplicas"
    return Decision(bounded, reason)


def _stabilized(
    current: int, proposed: int, behavior: Mapping[str, Any], history: History, now: float
) -> tuple[int, str]:
    def recent(direction: str) -> list[int]:
        window = behavior[direction]["stabilizationWindowSeconds"]
        return [replicas for at, replicas in history.proposals if now - at < window] or [proposed]

    up, down = min([*recent("scaleUp"), proposed]), max([*recent("scaleDown"), proposed])
    wanted = up if current < up else down if current > down else current
    if wanted < proposed:
        return wanted, "ScaleUpStabilized"
    return wanted, "ScaleDownStabilized" if wanted > proposed else "DesiredWithinRange"


def _limit(current: int, wanted: int, behavior: Mapping[str, Any], history: History, now: float) -> int:
    """Return `wanted`, or as far on the way to it as the policies of that direction let it."""
    if wanted == current:
        return wanted
    up = wanted > current
    rules = behavior["scaleUp" if up else "scaleDown"]
    if rules["selectPolicy"] == "Disabled":
        return current
    limits = [_limit_of(policy, current, history, now, up) for policy in rules["policies"]]
    furthest = max if (rules["selectPolicy"] == "Max") == up else min
    return min(wanted, max(current, furthest(limits))) if up else max(wanted, min(current, furthest(limits)))


def _limit_of(policy: Mapping[str, Any], current: int, history: History, now: float, up: bool) -> int:
    """Return the replicas that a policy allows. Its value counts from the replicas at the start of its period."""
    recent = [change for at, change in history.changes if now - at < policy["periodSeconds"]]
    start, value = current - sum(recent), policy["value"]
    if policy["type"] == "Pods":
        return int(start + value if up else start - value)
    share = (1 + value / 100) if up else (1 - value / 100)
    return int(math.ceil(start * share) if up else math.floor(start * share))
