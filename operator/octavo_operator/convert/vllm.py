"""Deployments and StatefulSets that run `vllm serve` as LLMServices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.convert.container import environment, resources, scheduling
from octavo_operator.convert.draft import Draft, NotConvertibleError, source_of
from octavo_operator.convert.vllm_arguments import Arguments, read_arguments
from octavo_operator.convert.vllm_launch import Launch, find_launch


def runs_vllm(workload: Mapping[str, Any]) -> bool:
    """Return True if one of the workload's containers runs vLLM's server."""
    return bool(_launches(workload))


def convert_workload(workload: Mapping[str, Any], scalers: Sequence[Mapping[str, Any]]) -> Draft:
    """Return the LLMService of a Deployment or StatefulSet; `scalers` are the file's HorizontalPodAutoscalers."""
    metadata = workload["metadata"]
    draft = Draft(f"{workload['kind']} {metadata['name']}", metadata["name"], metadata.get("namespace"))
    container, launch = _launches(workload)[0]
    arguments = read_arguments(launch.arguments)
    draft.notes += arguments.notes
    for other in launch.others:
        draft.note(f"this part of its shell script was left out: {other}")
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
    if len(pod["containers"]) > 1 or pod.get("initContainers"):
        draft.note("other containers were left out: see spec.podTemplate")
    return draft


def _launches(workload: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Launch]]:
    """Return the containers that run vLLM's server, each with how it starts it."""
    pod = ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}
    found = ((container, find_launch(container)) for container in pod.get("containers") or [])
    return [(container, launch) for container, launch in found if launch is not None]


def _source(arguments: Arguments, container: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    model = arguments.model
    if not model:
        raise NotConvertibleError("its arguments name no model")
    if not model.startswith("/"):
        return source_of(model, arguments.revision)
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or []}
    folders = {str(mount["mountPath"]).rstrip("/"): mount for mount in container.get("volumeMounts") or []}
    folder = max((each for each in folders if (model + "/").startswith(each + "/")), key=len, default=None)
    mount = folders[folder] if folder is not None else {}
    claim = volumes.get(mount.get("name"), {}).get("persistentVolumeClaim")
    if folder is None or not claim:
        raise NotConvertibleError(f"its model is the folder {model}, which is on no PersistentVolumeClaim")
    if mount.get("subPathExpr"):
        raise NotConvertibleError(f"its model is the folder {model} of a mount whose subPathExpr each pod computes")
    inside = "/".join(part for part in (mount.get("subPath", ""), model[len(folder) :].strip("/")) if part)
    return source_of(f"pvc://{claim['claimName']}/{inside}")


def _note_volumes(draft: Draft, pod: Mapping[str, Any], source: Mapping[str, Any]) -> None:
    used = (source.get("persistentVolumeClaim") or {}).get("claimName")
    for volume in pod.get("volumes") or []:
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim and claim != used:
            draft.note(f"the claim {claim} was left out: spec.cache keeps downloaded files")


def _replicas(draft: Draft, workload: Mapping[str, Any], scalers: Sequence[Mapping[str, Any]]) -> None:
    for scaler in scalers:
        if _scales(scaler, workload):
            spec = scaler["spec"]
            least = spec.get("minReplicas")
            draft.spec["autoscaling"] = {
                "minReplicas": 1 if least is None else least,
                "maxReplicas": spec["maxReplicas"],
            }
            draft.note("autoscaling follows the queue now; delete the HorizontalPodAutoscaler with the Deployment")
            return
    draft.spec["replicas"] = workload["spec"].get("replicas", 1)


def _scales(scaler: Mapping[str, Any], workload: Mapping[str, Any]) -> bool:
    """Return True if a HorizontalPodAutoscaler is the workload's, and of its namespace where both name theirs."""
    target, ours = (scaler.get("spec") or {}).get("scaleTargetRef") or {}, workload["metadata"]
    theirs = (scaler.get("metadata") or {}).get("namespace")
    same_namespace = not theirs or not ours.get("namespace") or theirs == ours["namespace"]
    return same_namespace and (target.get("kind"), target.get("name")) == (workload["kind"], ours["name"])
