"""Events, as `kubectl describe` shows them below an LLMService: one for each change of a condition, repeats counted."""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from octavo_operator.api.conditions import BAD_STATUS, Reason
from octavo_operator.api.names import API_VERSION, FIELD_MANAGER, KIND
from octavo_operator.reconcile.api_requests.api_error import ApiError

logger = logging.getLogger(__name__)

_LONGEST_NOTE = 1024  # the API's own bound: of bytes, though its refusal speaks of characters
_LONGEST_INSTANCE = 128
_REPEAT_SECONDS = 60.0  # the same event is not repeated sooner
_MOST_REMEMBERED = 4096

_WANTED = {
    Reason.DEPLOYING,
    Reason.SUSPENDED,
    Reason.SCALED_TO_ZERO,
    Reason.FIXED_REPLICAS,
    Reason.AUTOSCALER_PENDING,
    Reason.NOT_LOADED,
    Reason.ADAPTERS_LOADING,
}
"""Reasons of Normal events, even if the condition itself is not as a user would want it."""


@dataclass(frozen=True)
class Transition:
    """One change that is worth an event."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


class EventWriter(Protocol):
    """The API calls that recording events makes."""

    async def create_event(self, event: dict[str, Any]) -> bool:
        """Create the event; return False if one of its name exists already."""

    async def repeat_event(self, namespace: str, name: str, now: str) -> None:
        """Count one more of an event that exists."""


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Transition]:
    """Return the changes between two statuses, as the API has them, each once.

    Where there was none, only what is bad.
    """
    old = {condition["type"]: condition for condition in before.get("conditions") or ()}
    found: dict[tuple[str, str], Transition] = {}
    for condition in after.get("conditions") or ():
        known, kind, reason = old.get(condition["type"]), condition["type"], condition["reason"]
        bad = BAD_STATUS.get(kind) == condition["status"] and reason not in _WANTED
        same = known and (known["status"], known["reason"]) == (condition["status"], reason)
        if kind not in BAD_STATUS or same or (known is None and not bad):
            continue
        change = Transition("Warning" if bad else "Normal", reason, condition["message"])
        if bad or (reason, change.note) not in found:
            found[reason, change.note] = change
    return list(found.values())


class Recorder:
    """Writes events, best effort: an event that cannot be written is logged and dropped."""

    def __init__(self, cluster: EventWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._written_at: dict[str, float] = {}
        self._instance = socket.gethostname()[:_LONGEST_INSTANCE]

    async def record(self, regarding: Mapping[str, str], changes: Sequence[Transition], now: str) -> None:
        """Write an event for each of `changes` of the LLMService `regarding`; `now` is RFC 3339."""
        moment = datetime.fromisoformat(now).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for change in changes:
            event = _event(regarding, change, self._instance, moment)
            name = event["metadata"]["name"]
            if self._written_at.get(name, float("-inf")) > self._clock() - _REPEAT_SECONDS:
                continue
            self._remember(name)
            try:
                if not await self._cluster.create_event(event):
                    await self._cluster.repeat_event(regarding["namespace"], name, moment)
            except ApiError as error:
                level = logging.DEBUG if error.namespace_ends else logging.WARNING
                logger.log(level, "cannot write the event %s of %s: %s", change.reason, regarding["name"], error)

    def _remember(self, name: str) -> None:
        self._written_at[name] = self._clock()
        if len(self._written_at) > _MOST_REMEMBERED:
            del self._written_at[next(iter(self._written_at))]


def _event(regarding: Mapping[str, str], change: Transition, instance: str, now: str) -> dict[str, Any]:
    """Return the Event. Its name is made of what it says, so that the same event, also of another replica, finds it."""
    content = "\0".join((regarding["uid"], change.type, change.reason, change.note))
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{regarding['name']}.{hashlib.sha256(content.encode()).hexdigest()[:16]}",
            "namespace": regarding["namespace"],
        },
        "eventTime": now,
        "type": change.type,
        "reason": change.reason,
        "action": "Reconcile",
        "note": _shortened(change.note),
        "regarding": {"apiVersion": API_VERSION, "kind": KIND, **regarding},
        "reportingController": f"octavo.dev/{FIELD_MANAGER}",
        "reportingInstance": instance,
    }


def _shortened(note: str) -> str:
    """Return `note`, cut where it has more bytes in UTF-8 than an event may have."""
    text, mark = note.encode(errors="replace"), "…"
    if len(text) <= _LONGEST_NOTE:
        return note
    return text[: _LONGEST_NOTE - len(mark.encode())].decode(errors="ignore") + mark
