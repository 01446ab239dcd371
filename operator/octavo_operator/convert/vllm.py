"""Deployments and StatefulSets that run `vllm serve` as LLMServices."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.convert.container import environment, resources, scheduling
from octavo_operator.convert.draft import Draft, NotConvertibleError, source_of
from octavo_operator.convert.vllm_arguments import Arguments, read_arguments


def runs_vllm(workload: Mapping[str, Any]) -> bool:
    """Return True if one of the workload's containers runs vLLM's server."""
    return any(_words(container) is not None for container in _containers(workload))


def convert_workload(workload: Mapping[str, Any], scalers: Sequence[Mapping[str, Any]]) -> Draft:
    """Return the LLMService of a Deployment or StatefulSet; `scalers` are the file's HorizontalPodAutoscalers."""
    metadata = workload["metadata"]
    draft = Draft(f"{workload['kind']} {metadata['name']}", metadata["name"], metadata.get("namespace"))
    container = next(one for one in _containers(workload) if _words(one) is not None)
    arguments = read_arguments(_words(container) or [])
    draft.notes += arguments.notes
    pod = workload["spec"]["template"]["spec"]
    names = arguments.served_names or [arguments.model or ""]
    source = _source(arguments, container, pod)
    draft.spec["model"] = {"name": names[0], "aliases": names[1:], "source": source}
    if not names[1:]:
        del draft.spec["model"]["aliases"]
    draft.spec["engine"] = dict(arguments.engine)
    environment(draft, container.get("env") or [])
    if container.get("envFrom"):
        draft.spec["engine"]["envFrom"] = container["envFrom"]
    resources(draft, container.get("resources") or {})
    _replicas(draft, workload, scalers)
    scheduling(draft, pod)
    _note_volumes(draft, pod, source)
    if pod.get("serviceAccountName"):
        draft.note("serviceAccountName was left out: the engine does not call the API server")
    if len(pod["containers"]) > 1:
        draft.note("other containers were left out: see spec.podTemplate")
    return draft


def _containers(workload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    pod = ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}
    return list(pod.get("containers") or [])


def _words(container: Mapping[str, Any]) -> list[str] | None:
    """Return the words after `vllm serve`, or None if the container runs something else."""
    words = [str(word) for word in (*(container.get("command") or []), *(container.get("args") or []))]
    if len(words) > 2 and words[0].rpartition("/")[2] in ("sh", "bash") and words[1] in ("-c", "-lc", "-ec"):
        words = shlex.split(words[2].replace("\\\n", " "))
    for start in range(len(words)):
        if words[start].rpartition("/")[2] == "vllm" and words[start + 1 : start + 2] == ["serve"]:
            return words[start + 2 :]
        if words[start] == "vllm.entrypoints.openai.api_server":
            return words[start + 1 :]
    started_by_image = not container.get("command") and "vllm" in str(container.get("image", ""))
    return words if started_by_image else None


def _source(arguments: Arguments, container: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    model = arguments.model
    if not model:
        raise NotConvertibleError("its arguments name no model")
    if not model.startswith("/"):
        return source_of(model, arguments.revision)
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.get("volumes") or []
        if volume.get("persistentVolumeClaim")
    }
    for mount in container.get("volumeMounts") or []:
        folder = str(mount["mountPath"]).rstrip("/")
        if mount["name"] in claims and (model + "/").startswith(folder + "/"):
            inside = "/".join(part for part in (mount.get("subPath", ""), model[len(folder) :].strip("/")) if part)
            return source_of(f"pvc://{claims[mount['name']]}/{inside}")
    raise NotConvertibleError(f"its model is the folder {model}, which is on no PersistentVolumeClaim")


def _note_volumes(draft: Draft, pod: Mapping[str, Any], source: Mapping[str, Any]) -> None:
    used = (source.get("persistentVolumeClaim") or {}).get("claimName")
    for volume in pod.get("volumes") or []:
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim and claim != used:
            draft.note(f"the claim {claim} was left out: spec.cache keeps downloaded files")


def _replicas(draft: Draft, workload: Mapping[str, Any], scalers: Sequence[Mapping[str, Any]]) -> None:
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) == (workload["kind"], workload["metadata"]["name"]):
            spec = scaler["spec"]
            draft.spec["autoscaling"] = {
                "minReplicas": spec.get("minReplicas", 1),
                "maxReplicas": spec["maxReplicas"],
            }
            draft.note("autoscaling follows the queue now; delete the HorizontalPodAutoscaler with the Deployment")
            return
    draft.spec["replicas"] = workload["spec"].get("replicas", 1)
