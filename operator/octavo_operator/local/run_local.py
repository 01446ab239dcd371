"""Runs the engine of one LLMService, with what its pod runs before and beside it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_operator.api.resource import LLMService
from octavo_operator.local.command import HOST, Command, places_of, translate
from octavo_operator.local.engine import PROBES, LocalEngine, Probe
from octavo_operator.local.errors import LocalError
from octavo_operator.local.processes import beside, run_to_the_end, start
from octavo_operator.local.volumes import make_folders
from octavo_operator.render import RenderConfig, unsupported_fields
from octavo_operator.render.adapters import LIST_KEY, LIST_VOLUME, SIDECAR, adapter_list
from octavo_operator.render.children import render
from octavo_operator.render.container import CONTAINER, PRE_STOP_SECONDS
from octavo_operator.render.fetch import FETCH

_NEEDED = ("command", "args", "env", "volumeMounts", *PROBES)
"""The fields of the engine's container that are used here."""
_KUBERNETES_GRACE_SECONDS = 30


@contextlib.contextmanager
def run_local(service: LLMService, port: int = 0, volumes: Mapping[str, Path] | None = None) -> Iterator[LocalEngine]:
    """Run the engine of `service` while the block runs; afterwards no process and no folder is left.

    `port` 0 takes any free one. `volumes` gives folders to volumes of the pod that cannot be made here. To be called
    from a thread that lives as long as the engine: the kernel ends the engine with it. LocalError says what is missing.
    """
    if missing := unsupported_fields(service.spec):
        raise LocalError("; ".join(map(str, missing)))
    manifests = render(service, RenderConfig(engine_image="local"))
    template = next(m for m in manifests if m["kind"] == "Deployment")["spec"]["template"]
    port = _claim_port(port)
    with contextlib.ExitStack() as left:
        root = left.enter_context(tempfile.TemporaryDirectory(prefix="octavo-local-"))
        try:
            plan = _plan(service, template["spec"], port, Path(root), volumes or {})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise LocalError("spec.podTemplate makes the pod invalid: the API server would refuse it") from error
        if plan.adapters:
            left.enter_context(beside(plan.adapters, root))
        if plan.fetch:
            run_to_the_end(plan.fetch, root)
        engine = LocalEngine(start(plan.serve, root), plan.probes, port, plan.grace_seconds)
        left.callback(engine.close)
        yield engine


@dataclass(frozen=True)
class _Plan:
    """The processes of a pod (None: it has no such container), the engine's probes, and its time to end in seconds."""

    adapters: Command | None
    fetch: Command | None
    serve: Command
    probes: Mapping[str, Probe]
    grace_seconds: float


def _plan(service: LLMService, pod: Mapping[str, Any], port: int, root: Path, volumes: Mapping[str, Path]) -> _Plan:
    """Make the folders of the pod, and return what is to run in them.

    spec.podTemplate may have put anything in the place of any field: KeyError, TypeError, AttributeError or ValueError
    where that cannot be read.
    """
    engine = _engine_of(pod)
    before = {container["name"]: container for container in pod.get("initContainers") or ()}
    folders = make_folders(pod["volumes"], root, volumes)
    if SIDECAR in before:
        _list_adapters(service, pod["volumes"], engine, folders)

    def command(name: str) -> Command | None:
        return translate(before[name], port, folders, os.environ) if name in before else None

    return _Plan(
        adapters=command(SIDECAR),
        fetch=command(FETCH),
        serve=translate(engine, port, folders, os.environ),
        probes={name: Probe.of(name, engine[name]) for name in PROBES},
        grace_seconds=pod.get("terminationGracePeriodSeconds", _KUBERNETES_GRACE_SECONDS) - PRE_STOP_SECONDS,
    )


def _engine_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the engine's container; LocalError if spec.podTemplate has taken away what is needed to run it here."""
    engine: Mapping[str, Any] = next(
        (each for each in pod.get("containers") or () if each.get("name") == CONTAINER), {}
    )
    volumes = {volume["name"] for volume in pod.get("volumes") or ()}
    missing = [name for name in _NEEDED if not engine.get(name)]
    used = ["tmp", *(mount["name"] for mount in engine.get("volumeMounts") or ())]
    missing += [f"volume {name}" for name in dict.fromkeys(used) if name not in volumes]
    if missing:
        raise LocalError(f"spec.podTemplate leaves the container {CONTAINER} without {', '.join(missing)}")
    return engine


def _list_adapters(
    service: LLMService, volumes: Sequence[Mapping[str, Any]], engine: Mapping[str, Any], folders: Mapping[str, Path]
) -> None:
    """Write the list of adapters that a pod has as an annotation.

    Credentials come from the environment, which the sidecar's processes inherit.
    """
    here, wanted = places_of(engine, folders), json.loads(adapter_list(service.spec, volumes))
    for adapter in wanted["adapters"]:
        adapter.pop("files", None)
        if "path" in adapter:
            adapter["path"] = here(adapter["path"])
    (folders[LIST_VOLUME] / LIST_KEY).write_text(json.dumps(wanted))


def _claim_port(port: int) -> int:
    """Return `port`, or a free one for 0; LocalError if another program has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LocalError(f"port {port} of {HOST}: {error.strerror}; choose another, or --port 0 for any") from None
        return int(probe.getsockname()[1])
