"""The rights that the API server has lately refused to the operator, read from its own error messages.

Each is asked for again within REFUSED_SECONDS (api_error.py), so a right that was not refused for a little longer has
been given.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

LASTING_SECONDS = 90.0
_REFUSAL = re.compile(
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


@dataclass(frozen=True, order=True)
class Right:
    """One right of RBAC. `resource` as `kubectl auth can-i` takes it; `namespace` *: the whole cluster."""

    verb: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        where = "in the whole cluster" if self.namespace == "*" else f"in namespace {self.namespace}"
        return f"{self.verb} {self.resource} {where}"

    @property
    def remedy(self) -> str:
        """Return how to give the operator this right."""
        resource, _, group = self.resource.partition(".")
        rule = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{self.verb}"]}}'
        role = "ClusterRole" if self.namespace == "*" else f"ClusterRole, or Role in namespace {self.namespace},"
        return f"helm upgrade restores the chart's rules and bindings; or add {rule} to the operator's {role} by hand"


def refused_right(message: str) -> Right | None:
    """Return the right that an error message of the API server is about; None if it is about something else."""
    found = _REFUSAL.search(message)
    if not found:
        return None
    resource = ".".join(filter(None, (found["resource"], found["group"])))
    return Right(found["verb"], resource, found["namespace"] or "*")


def with_remedy(message: str) -> str:
    """Return a sentence of the API server's authorization with what gives the right; any other one as it is."""
    right = refused_right(message)
    return f"{message}; {right.remedy}" if right else message


class MissingRights:
    """The rights that were refused in the last LASTING_SECONDS. `clock`: seconds of no particular origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[Right, float] = {}
        self._unauthorized = "", float("-inf")

    def note(self, message: str) -> None:
        """Note a sentence with which the API server has refused something."""
        if right := refused_right(message):
            self._refused[right] = self._clock()

    def note_unauthorized(self, message: str) -> None:
        """Note the message of an error 401: no right is missing, but the credentials are not accepted."""
        self._unauthorized = message, self._clock()

    def lately(self) -> list[Right]:
        """Return the missing rights, sorted."""
        since = self._clock() - LASTING_SECONDS
        self._refused = {right: when for right, when in self._refused.items() if when > since}
        return sorted(self._refused)

    @property
    def problems(self) -> list[str]:
        """A sentence for each, and one for credentials that were refused."""
        message, when = self._unauthorized
        unauthorized = [message] if when > self._clock() - LASTING_SECONDS else []
        return unauthorized + [
            f"the operator's service account may not {right}; {right.remedy}" for right in self.lately()
        ]
