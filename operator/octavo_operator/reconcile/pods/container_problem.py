"""The problem of a container that cannot start, or has ended, read from its status alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.engine_flags import EXTRA, FIELDS
from octavo_operator.reconcile.problem import Problem
from octavo_operator.render.adapters import SIDECAR
from octavo_operator.render.container import CONTAINER
from octavo_operator.render.fetch import FETCH

_PULL_FAILURES = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}
_NOT_AUTHORIZED = re.compile(
    r"\bunauthorized\b|403 \(?forbidden|access (to the resource is )?denied|authorization failed", re.IGNORECASE
)
_PULLED = re.compile(r'\bimage "([^"]+)"')
_VERSION = re.compile(r"(:[^/:@]+)?(@.+)?$")
_CREDENTIALS = (
    "; if that registry wants credentials, see whether the Secrets in spec.engine.imagePullSecrets have them, and "
    "exist (kubectl get secrets): the kubelet leaves out one that does not"
)
_OTHER_ARCHITECTURE = re.compile(
    r"exec format error|no match for platform in manifest|no matching manifest for", re.IGNORECASE
)
"""The words of the kernel, of containerd and of CRI-O (or a registry's client)."""
_ARCHITECTURE_HELP = (
    "; the image is not built for the CPU architecture of the pod's node (kubectl get nodes -L kubernetes.io/arch): "
    "choose one that is, such as by spec.engine.image, or nodes for which it is built (spec.scheduling.nodeSelector "
    "kubernetes.io/arch)"
)
UNSTARTED = ("CreateContainerError", "RunContainerError")
"""Reasons of a container that its node cannot start. The kubelet counts no restart for it, so its duration decides."""
_EXIT_CODES = {
    2: Reason.CONFIGURATION_ERROR,
    3: Reason.MODEL_NOT_FOUND,
    4: Reason.OUT_OF_MEMORY,
    5: Reason.ENGINE_STALLED,
}
_OURS = (CONTAINER, FETCH, SIDECAR)
"""Containers whose exit codes mean what _EXIT_CODES says."""
ASKED_TO_END = (0, 143)  # after a drain, or by SIGTERM before there was anything to drain
_KILLED = 137  # SIGKILL
_KILLED_HELP = (
    "something killed it: kubectl describe pod {} shows whether a probe had failed, which needs CPU "
    "(spec.resources.requests.cpu) or time to load (spec.rollout.startupTimeoutSeconds); if none had, its node "
    "probably had no memory left (spec.resources.requests.memory)"
)
_KILLED_WITHOUT_PROBES = (  # what fetches, a model or adapters
    "something killed its container {container}: probably its node had no memory left "
    "(spec.resources.requests.memory), as the node's events say then"
)
_MISSING = re.compile(r'\b(secret|configmap)s? (?:"|cache\b|\S+/)', re.IGNORECASE)
"""The object that a container's environment is read from, in the words of a node that cannot read it."""
_OWN_PREFIX = "octavo-engine: "  # begins the one line in which the engine says why it ends; the log's lines differ
_SETTING = re.compile(r"(?<![\w-])(?:--[a-z][a-z0-9-]*|HF_ENDPOINT\b)")
_ADVICE = ". Try "  # begins the sentence with what helps, where the engine says first what there is and what it needs
_LONGEST_MESSAGE = 800  # characters of a termination message that a condition repeats: what does not fit takes 450


def waiting_problem(pod: str, waiting: Mapping[str, Any], container: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a `container` of the pod of this name whose state is `waiting`."""
    why, message = waiting.get("reason") or "", waiting.get("message") or ""
    if why in _PULL_FAILURES:
        help_ = _CREDENTIALS if _NOT_AUTHORIZED.search(message) else _architecture_help(message)
        image = _unpulled(container.get("image") or "", message)
        return Problem(Reason.PULL_FAILED, f"pod {pod} cannot pull {image}: {message or why}{help_}")
    if why == "CreateContainerConfigError":
        return Problem(_reason_of_settings(message), f"pod {pod} cannot start: {message}")
    if why in UNSTARTED:
        return Problem(Reason.CRASH_LOOP, f"pod {pod} cannot start: {message}{_architecture_help(message)}")
    ended = last_exit(pod, container)
    if ended is None and why == "CrashLoopBackOff":  # its node has removed the container, and with it how it ended
        return Problem(Reason.CRASH_LOOP, f"pod {pod} keeps crashing: {message or why}")
    return ended


def _architecture_help(message: str) -> str:
    """Return what helps if `message` is about an image for other CPUs, as the end of a sentence; "" if it is not."""
    return _ARCHITECTURE_HELP if _OTHER_ARCHITECTURE.search(message) else ""


def _unpulled(image: str, message: str) -> str:
    """Return the image that `message` is about: that of the container, or one that the pod has as a volume.

    The kubelet reports both as the container's state.
    """
    pulled = _PULLED.search(message)
    if pulled is None:
        return image
    name = _VERSION.sub("", image)
    if f"/{_VERSION.sub('', pulled[1])}".endswith(f"/{name}"):  # the kubelet may put a registry in front
        return image
    return f"{pulled[1]}, which it has as a volume"


def _reason_of_settings(message: str) -> Reason:
    """Return the reason of a container whose settings its node cannot make, such as its environment or its user."""
    match = _MISSING.search(message)
    if match is None:
        return Reason.CONFIGURATION_ERROR
    return Reason.SECRET_MISSING if match[1].lower() == "secret" else Reason.CONFIG_MAP_MISSING


def last_exit(pod: str, container: Mapping[str, Any]) -> Problem | None:
    """Return the problem with which the `container` ended before it was started again."""
    terminated = (container.get("lastState") or {}).get("terminated")
    return exit_problem(pod, container, terminated) if terminated else None


def exit_problem(pod: str, container: Mapping[str, Any], terminated: Mapping[str, Any]) -> Problem:
    """Return the problem of a `container` that was `terminated`."""
    if container.get("name") not in _OURS:
        return _exit_of_others(pod, container, terminated)
    code, words = terminated.get("exitCode", -1), last_message(terminated.get("message") or "")
    if terminated.get("reason") == "OOMKilled":
        return Problem(Reason.OUT_OF_MEMORY, _over_memory_limit(pod, container))
    if code in ASKED_TO_END:
        return Problem(
            Reason.PROBE_FAILED,
            f"pod {pod} was stopped (exit code {code}), as a failed probe does: raise "
            "spec.rollout.startupTimeoutSeconds if the model needs longer to load",
        )
    reason = _EXIT_CODES.get(code, Reason.CRASH_LOOP)
    said = f": {words}{_fields_of_settings(words)}" if words else ""
    help_ = f"; {_killed_help(pod, container['name'])}" if code == _KILLED else _architecture_help(words)
    return Problem(reason, f"pod {pod} ended with exit code {code}{said}{help_}")


def _fields_of_settings(words: str) -> str:
    """Return in brackets the fields of the spec for the flags that the engine advises in `words`; "" for none."""
    advised = dict.fromkeys(_SETTING.findall(words.rpartition(_ADVICE)[2]))  # all of `words` if they have no advice
    fields = {"HF_ENDPOINT": "model.source.huggingFace.endpoint"} | {f"--{name}": path for name, path in FIELDS.items()}
    named = [f"{each} is spec.{fields[each]}" for each in advised if each in fields]
    if extra := [each for each in advised if each.removeprefix("--") in EXTRA]:
        named.append(f"{' and '.join(extra)} {'go' if len(extra) > 1 else 'goes'} into spec.engine.extraArgs")
    return f" ({', '.join(named)})" if named else ""


def _killed_help(pod: str, container: str) -> str:
    """Return what may have killed our `container` of the pod of this name, as part of a sentence."""
    return _KILLED_HELP.format(pod) if container == CONTAINER else _KILLED_WITHOUT_PROBES.format(container=container)


def _over_memory_limit(pod: str, container: Mapping[str, Any]) -> str:
    """Return that our `container` of the pod of this name exceeded its memory limit, and what helps."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    of = f" of {limit}" if limit else ""  # not every node reports it
    if container["name"] == SIDECAR:  # its limit is not the spec's
        what = f"container {SIDECAR} of pod {pod} was killed for exceeding its memory limit{of}"
        return f"{what}: raise resources.limits.memory of the init container {SIDECAR} in spec.podTemplate"
    source = (
        " (where the spec sets none, a LimitRange or an admission webhook does; a pod keeps what it was created with: "
        f"after a change, kubectl delete pod {pod})"
    )
    return (
        f"pod {pod} was killed for exceeding its memory limit{of}{source * bool(limit)}: raise "
        "spec.resources.limits.memory, or lower spec.engine.maxModelLength or spec.engine.maxConcurrentRequests"
    )


def _exit_of_others(pod: str, container: Mapping[str, Any], terminated: Mapping[str, Any]) -> Problem:
    """Return the problem of a container that spec.podTemplate or an admission webhook has added."""
    name, code, words = container.get("name"), terminated.get("exitCode", -1), terminated.get("message") or ""
    killed = ", killed for exceeding its memory limit" if terminated.get("reason") == "OOMKilled" else ""
    ending = (
        f": {last_message(words)}{_architecture_help(words)}"
        if words
        else f"; kubectl logs {pod} -c {name} --previous may say why"
    )
    return Problem(Reason.CRASH_LOOP, f"container {name} of pod {pod} ended with exit code {code}{killed}{ending}")


def last_message(message: str) -> str:
    """Return the end of a termination message, in one line: the engine's own last sentence, if it got that far."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(_OWN_PREFIX)]
    if own:
        return own[-1][-_LONGEST_MESSAGE:]
    return " / ".join(lines[-3:])[-_LONGEST_MESSAGE:]
