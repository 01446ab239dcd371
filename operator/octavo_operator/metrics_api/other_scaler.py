"""Notices another client that scales the same Deployment, such as a user's HorizontalPodAutoscaler. Pure.

Two scalers with different numbers would add and remove pods forever, and each new pod loads a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_operator.reconcile.apply.other_autoscalers import in_words

BACKOFF_SECONDS = 300.0
"""The time for which the operator leaves the replicas to another client that changed them MOST_CHANGES times in it."""
MOST_CHANGES = 3
LONGEST_BACKOFF_SECONDS = 3600.0
"""The backoff doubles, up to this, if the other client changes the replicas again soon after it ended."""


@dataclass
class OtherScaler:
    """The changes that another client made to a Deployment's replicas. All times are in seconds."""

    expected: int | None = None
    """The replicas that there are if no other client changes them."""
    changes: list[float] = field(default_factory=list)
    backoff: float = BACKOFF_SECONDS
    until: float = float("-inf")
    """Until when the operator makes no change itself."""
    autoscalers: Sequence[str] = ()
    """The names of the HorizontalPodAutoscalers that were last seen to scale the Deployment."""

    def observe(self, current: int, now: float) -> None:
        """Note the number of replicas that there is `now`."""
        is_changed, self.expected = self.expected not in (None, current), current
        if not is_changed:
            return
        self.changes = [*(each for each in self.changes if now - each < BACKOFF_SECONDS), now]
        changes_again = self.until <= now < self.until + self.backoff
        if changes_again:
            self.backoff = min(2 * self.backoff, LONGEST_BACKOFF_SECONDS)
        elif now > self.until:
            self.backoff = BACKOFF_SECONDS
        if changes_again or len(self.changes) >= MOST_CHANGES:
            self.until = now + self.backoff

    def has_gone(self, autoscalers: Sequence[str] | None) -> bool:
        """Note which HorizontalPodAutoscalers scale the Deployment now (None: that is not known).

        Return True if there were some, and none is left: what they changed, they will not change again.
        """
        gone = bool(self.autoscalers) and autoscalers is not None and not autoscalers
        self.autoscalers = autoscalers or self.autoscalers
        return gone

    def problem(self, now: float) -> str:
        """Return a sentence while the operator leaves the replicas to another client, else an empty one."""
        if now >= self.until:
            return ""
        who = in_words(self.autoscalers) or "another client"
        sooner = "it is deleted, or " if self.autoscalers else ""
        return (
            f"{who} keeps changing the number of replicas (kubectl get hpa,scaledobject): stop it, or remove "
            f"spec.autoscaling; the operator scales again once {sooner}it has changed nothing for {self.backoff:.0f} s"
        )
