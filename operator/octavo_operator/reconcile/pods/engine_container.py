"""Finds the container of a pod in which its engine runs, also where an admission webhook has renamed it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.render.container import CONTAINER, PORT_NAME


def engine_status(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the status of the engine's container, called as the operator calls it; None: there is none yet.

    One of another name is the engine's if it has the port to which the Service leads.
    """
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    name = _name(pod.get("spec") or {})
    found = next((each for each in statuses if each["name"] == name), None)
    return found if found is None or name == CONTAINER else {**found, "name": CONTAINER}


def running_engine(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the status of the engine's container if that runs; None: it does not."""
    found = engine_status(pod)
    return found if found is not None and "running" in (found.get("state") or {}) else None


def _name(spec: Mapping[str, Any]) -> str:
    containers = [each for each in spec.get("containers") or () if "name" in each]
    if any(each["name"] == CONTAINER for each in containers):
        return CONTAINER
    serving = (each["name"] for each in containers if any(map(_is_ours, each.get("ports") or ())))
    return next(serving, CONTAINER)


def _is_ours(port: Mapping[str, Any]) -> bool:
    return port.get("name") == PORT_NAME
