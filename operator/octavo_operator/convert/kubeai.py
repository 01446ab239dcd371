"""KubeAI's Model (kubeai.org/v1) as an LLMService."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo_operator.convert.container import environment, match_tensor_parallel_size
from octavo_operator.convert.draft import Draft, NotConvertibleError, source_of
from octavo_operator.convert.vllm_arguments import read_arguments

_UNBOUNDED = 4
"""`maxReplicas` where KubeAI's object has none; an LLMService needs a bound."""
_NO_COUNTERPART = {
    "cacheProfile": "see spec.cache",
    "files": "mount them with spec.podTemplate",
    "loadBalancing": "requests are spread by the Service",
    "image": "Octavo's own engine runs the model",
    "jsonPatches": "change pods with spec.podTemplate",
}


def convert_model(document: Mapping[str, Any]) -> Draft:
    """Return the LLMService of a Model; NotConvertibleError if Octavo has no source for its url."""
    metadata, given = document["metadata"], document.get("spec") or {}
    if "SpeechToText" in (given.get("features") or []):
        raise NotConvertibleError("it turns speech into text, which Octavo does not")
    draft = Draft(f"Model {metadata['name']}", metadata["name"], metadata.get("namespace"))
    arguments = read_arguments(given.get("args") or [])
    draft.notes += arguments.notes
    draft.spec = {
        "model": {"source": source_of(str(given.get("url", "")), arguments.revision)},
        "adapters": [{"name": one["name"], "source": source_of(one["url"])} for one in given.get("adapters") or []],
        "engine": dict(arguments.engine),
    }
    if "." in metadata["name"]:
        draft.spec["model"]["name"] = metadata["name"]
        draft.note("the LLMService has hyphens for the dots of its name; requests keep the old one as their model")
    if draft.spec["adapters"]:
        draft.note(f"requests ask for an adapter by its own name, without {metadata['name']}_ before it")
    environment(draft, [{"name": name, "value": _text(value)} for name, value in (given.get("env") or {}).items()])
    if given.get("envFrom"):
        draft.spec["engine"]["envFrom"] = given["envFrom"]
    _resources(draft, str(given.get("resourceProfile") or ""))
    _replicas(draft, given)
    if given.get("priorityClassName"):
        draft.spec["scheduling"] = {"priorityClassName": given["priorityClassName"]}
    if given.get("engine", "VLLM") != "VLLM":
        draft.note(f"engine {given['engine']}: Octavo's own engine serves the model, if its architecture is supported")
    for name, advice in _NO_COUNTERPART.items():
        if given.get(name):
            draft.note(f"{name} was left out: {advice}")
    return draft


def _text(value: Any) -> str:
    """Return a variable's value, which may not be in quotes; none is the empty text."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _resources(draft: Draft, profile: str) -> None:
    name, colon, count = profile.partition(":")
    if colon and not re.fullmatch("[1-9][0-9]*", count):
        raise NotConvertibleError(
            f"its resourceProfile is {profile}: write how often it takes the profile, as {name}:1"
        )
    number = int(count or 1)
    if name.startswith("cpu"):
        draft.spec["accelerator"] = {"count": 0}
        draft.spec["resources"] = {"requests": {"cpu": str(number)}}
        return
    if name.startswith(("google-tpu", "amd-", "intel-")):
        raise NotConvertibleError(f"its resourceProfile is {profile}: Octavo runs on NVIDIA's GPUs and on CPUs")
    draft.spec["accelerator"] = {"count": number}
    match_tensor_parallel_size(draft)
    gpus = f"{number} GPU" if number == 1 else f"{number} GPUs"
    draft.note(
        f"resourceProfile {profile or '(none)'}: {gpus} for a replica; if the profile chooses nodes, name their "
        "labels in spec.scheduling.nodeSelector"
    )


def _replicas(draft: Draft, given: Mapping[str, Any]) -> None:
    if given.get("autoscalingDisabled"):
        draft.spec["replicas"] = given.get("replicas", 1)
        return
    least, most = int(given.get("minReplicas") or 0), given.get("maxReplicas")
    if least == 0:
        draft.note("minReplicas: 1 is written for 0: no replica would count the requests that wait")
    if most is None:
        draft.note(f"maxReplicas: {max(least, _UNBOUNDED)} is written, as KubeAI's object has no bound; set yours")
    autoscaling: dict[str, Any] = {"minReplicas": max(1, least)}
    autoscaling["maxReplicas"] = max(1, least, int(most) if most is not None else _UNBOUNDED)
    if given.get("scaleDownDelaySeconds") is not None:
        window = int(given["scaleDownDelaySeconds"])
        autoscaling["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": window}}
    draft.spec["autoscaling"] = autoscaling
