"""Notices another client that scales the same Deployment, such as a user's HorizontalPodAutoscaler. Pure.

Two scalers with different numbers would add and remove pods for ever, each of which loads a model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRUCE_SECONDS = 300.0
"""The time for which the other client's number stands once it has changed the number MOST_CHANGES times within it."""
MOST_CHANGES = 3
LONGEST_TRUCE_SECONDS = 3600.0
"""Where the other client begins again after a truce, the next one is twice as long, up to this."""


@dataclass
class OtherScaler:
    """The times in seconds at which another client changed the replicas, which are `expected` to be as they were."""

    expected: int | None = None
    changes: list[float] = field(default_factory=list)
    truce: float = TRUCE_SECONDS
    until: float = float("-inf")

    def saw(self, current: int, now: float) -> None:
        """Note the number of replicas that there is `now`."""
        is_changed, self.expected = self.expected not in (None, current), current
        if not is_changed:
            return
        self.changes = [*(each for each in self.changes if now - each < TRUCE_SECONDS), now]
        begins_again = self.until <= now < self.until + self.truce
        if begins_again:
            self.truce = min(2 * self.truce, LONGEST_TRUCE_SECONDS)
        elif now > self.until:
            self.truce = TRUCE_SECONDS
        if begins_again or len(self.changes) >= MOST_CHANGES:
            self.until = now + self.truce

    def problem(self, now: float) -> str:
        """Return a sentence while the other client's number stands; empty: there is no such client."""
        if now >= self.until:
            return ""
        return (
            "another client keeps changing the number of replicas (kubectl get hpa,scaledobject): stop it, or remove "
            f"spec.autoscaling; its number stands until it has not changed it for {self.truce:.0f} s"
        )
