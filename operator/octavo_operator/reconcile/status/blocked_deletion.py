"""Finds what holds up the deletion of an LLMService: finalizers on it, or on what is deleted before it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from octavo_operator.reconcile.apply.volume_claims import CLAIM_IN_USE
from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.observation.observe import FOREGROUND, Observation, is_terminating

_GARBAGE_COLLECTORS = {FOREGROUND, "orphan"}
"""The finalizers of Kubernetes' own garbage collector, which removes them within moments."""
_LASTING = timedelta(minutes=1)
"""The time after which a finalizer of a child is reported: its owner may need a moment."""


def holders(live: Mapping[str, Any], observed: Observation, now: str) -> list[str]:
    """Return the finalizers that hold the LLMService `live`, those of its children and pods with the object's name.

    `now` is RFC 3339. Children count only where the LLMService waits for them (`kubectl delete --cascade=foreground`).
    """
    finalizers = live["metadata"].get("finalizers") or ()
    found = [each for each in finalizers if each not in _GARBAGE_COLLECTORS]
    if FOREGROUND in finalizers:
        moment = datetime.fromisoformat(now)
        found += [what for what, since in _held(observed) if moment - since >= _LASTING]
    return found


def deletion_patience_seconds(live: Mapping[str, Any], observed: Observation, now: str) -> float | None:
    """Return in how many seconds a finalizer of a child will count that does not yet; None: there is none."""
    if FOREGROUND not in (live["metadata"].get("finalizers") or ()):
        return None
    moment = datetime.fromisoformat(now)
    left = [(since + _LASTING - moment).total_seconds() for _, since in _held(observed)]
    return min((seconds + 1 for seconds in left if seconds > 0), default=None)


def _held(observed: Observation) -> Iterator[tuple[str, datetime]]:
    """Yield what is being deleted and is held by a finalizer of others, each with the time at which that was asked."""
    bodies = [(kind, child) for (kind, _), child in observed.children.items()]
    for kind, body in [*bodies, *((POD.name, pod) for pod in observed.pods)]:
        metadata = body["metadata"]
        usual = _GARBAGE_COLLECTORS | ({CLAIM_IN_USE} if observed.pods else set())
        names = [each for each in metadata.get("finalizers") or () if each not in usual]
        if is_terminating(body) and names:
            yield (
                f"{kind} {metadata['name']} ({', '.join(names)})",
                datetime.fromisoformat(metadata["deletionTimestamp"]),
            )
