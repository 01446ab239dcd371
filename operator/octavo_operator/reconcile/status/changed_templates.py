"""Notices Deployments whose pod template others change again and again, so that no rollout ever ends.

Such as `kubectl rollout restart` in a loop, or a client that sets another label each time: what others add to the
metadata of a pod template stays, so this is no conflict over a field, and each change gives the Deployment's controller
its whole progress deadline anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.observation.observe import Key, Observation
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.rollout import is_rolled_out
from octavo_operator.reconcile.timestamps import seconds_between

_MOST = 4
"""So many templates of one generation are too many: of its own the operator needs one, after an upgrade two."""
_PAUSE_SECONDS = 600.0
"""Seconds without another change after which the changes before it do not count."""


@dataclass
class _Seen:
    """The last templates (digests) of a generation of the spec, since when they were seen, and since when the last."""

    generation: int | None
    since: str
    last: str
    templates: list[str] = field(default_factory=list)


class ChangedTemplates:
    """Remembers the pod templates of each LLMService's Deployment until its rollout has ended."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}

    def note(self, key: Key, observed: Observation, now: str) -> str:
        """Note its Deployment's pod template; return since when there have been too many (RFC 3339); "": there are not.

        Those of another generation of its spec, which changes the template too, do not count.
        """
        deployment = observed.children.get(("Deployment", key[1]), {})
        wanted = int((deployment.get("spec") or {}).get("replicas") or 0)
        if observed.service is None or not deployment or is_rolled_out(deployment, wanted):
            self.forget(key)
            return ""
        generation = observed.service["metadata"].get("generation")
        known = self._seen.get(key)
        if known is None or known.generation != generation or seconds_between(known.last, now) > _PAUSE_SECONDS:
            known = self._seen[key] = _Seen(generation, now, now)
        template = str(deployment.get("template") or "")
        if template not in known.templates:
            known.last = now
            known.templates = [*known.templates[1 - _MOST :], template]  # a loop may make them for weeks
        return known.since if len(known.templates) >= _MOST else ""

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self._seen.pop(key, None)


def changed_template(deployment: str, since: str) -> Problem | None:
    """Return the problem that the template of the Deployment of this name keeps changing `since`; None: it does not."""
    if not since:
        return None
    return Problem(
        Reason.FIELD_CONFLICT,
        f"the pod template of Deployment {deployment} keeps being changed since {since}, so that each rollout begins "
        "anew before its pods serve: stop what changes it, such as kubectl rollout restart in a loop; kubectl get "
        f"deployment {deployment} -o yaml --show-managed-fields names the client",
    )
