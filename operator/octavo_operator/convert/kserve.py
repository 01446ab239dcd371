"""KServe's InferenceService and LLMInferenceService as LLMServices."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from octavo_operator.convert.container import environment, resources, scheduling
from octavo_operator.convert.draft import Draft, NotConvertibleError, source_of
from octavo_operator.convert.vllm import convert_workload, runs_vllm
from octavo_operator.convert.vllm_arguments import read_arguments

_FORMATS = ("huggingface", "vllm")
_MORE_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
_NO_COUNTERPART = {
    "transformer": "clients send what the model reads",
    "explainer": "it has no counterpart",
    "canaryTrafficPercent": "create a second LLMService, and let a gateway split the requests",
    "scaleTarget": "autoscaling follows the queue; see spec.autoscaling",
    "scaling": "see spec.autoscaling",
    "autoScaling": "see spec.autoscaling",
    "logger": "the engine does not log the content of requests and answers",
    "batcher": "the engine batches by itself",
    "workerSpec": "a replica runs on the GPUs of one node",
    "worker": "a replica runs on the GPUs of one node",
    "prefill": "a replica computes prompts and answers",
    "router": "requests are spread by the Service",
    "baseRefs": "the content of these LLMInferenceServiceConfigs is not read",
    "serviceAccountName": "name the Secret of a token or of a bucket's keys in spec.model.source",
}


def convert_inference_service(document: Mapping[str, Any]) -> Draft:
    """Return the LLMService of an InferenceService; NotConvertibleError if its predictor serves no language model."""
    spec = document["spec"]
    predictor = spec["predictor"]
    model = predictor.get("model")
    if model is None:
        workload = {**document, "spec": {"template": {"spec": predictor}}}
        if not runs_vllm(workload):
            raise NotConvertibleError("its predictor runs no language model of the formats " + ", ".join(_FORMATS))
        draft = convert_workload(workload, ())
    else:
        form = (model.get("modelFormat") or {}).get("name")
        if form not in _FORMATS:
            raise NotConvertibleError(f"its model has the format {form}: Octavo serves those of {', '.join(_FORMATS)}")
        draft = _draft(document, model.get("storageUri"), model)
        scheduling(draft, predictor)
    _replicas(draft, predictor)
    _note(draft, {**spec, **predictor})
    return draft


def convert_llm_inference_service(document: Mapping[str, Any]) -> Draft:
    """Return the LLMService of an LLMInferenceService."""
    spec = document["spec"]
    model, pod = spec["model"], spec.get("template") or {}
    containers = pod.get("containers") or [{}]
    container = next((one for one in containers if one.get("name") == "main"), containers[0])
    draft = _draft(document, model["uri"], container, model.get("name"))
    draft.spec["adapters"] = [
        {"name": one["name"], "source": source_of(*_without_revision(one["uri"]))}
        for one in (model.get("lora") or {}).get("adapters") or []
    ]
    draft.spec["replicas"] = spec.get("replicas", 1)
    scheduling(draft, pod)
    count = draft.spec["accelerator"]["count"]
    for name, size in (spec.get("parallelism") or {}).items():
        if name == "tensor" and count == 0 and size != 1:
            draft.note(
                f"accelerator.count: 0 is written, as it asks for no GPU; set it, as parallelism.tensor is {size}"
            )
        elif name != "tensor" or size != max(1, count):
            draft.note(f"parallelism.{name}: {size} was left out: each GPU of a replica holds one shard")
    _note(draft, {**pod, **spec})
    return draft


def _draft(
    document: Mapping[str, Any], uri: str | None, container: Mapping[str, Any], served: str | None = None
) -> Draft:
    """Return a draft with model, engine and resources; `uri` is where the model is, unless an argument says it."""
    metadata = document["metadata"]
    draft = Draft(f"{document['kind']} {metadata['name']}", metadata["name"], metadata.get("namespace"))
    variables = container.get("env") or []
    more = [one for one in variables if one["name"] == _MORE_ARGUMENTS]
    words = shlex.split(" ".join(one.get("value") or "" for one in more))
    arguments = read_arguments([*map(str, container.get("args") or []), *words])
    draft.notes += arguments.notes
    if any(one.get("valueFrom") for one in more):
        draft.note(f"the arguments of {_MORE_ARGUMENTS} are elsewhere in the cluster (valueFrom) and were left out")
    uri = uri or arguments.model
    if not uri:
        raise NotConvertibleError("neither storageUri nor --model_id names its model")
    address, revision = _without_revision(uri)
    draft.spec["model"] = {
        "name": served or (arguments.served_names or [metadata["name"]])[0],
        "source": source_of(address, revision or arguments.revision),
    }
    draft.spec["engine"] = dict(arguments.engine)
    environment(draft, [one for one in variables if one["name"] != _MORE_ARGUMENTS])
    if container.get("envFrom"):
        draft.spec["engine"]["envFrom"] = container["envFrom"]
    resources(draft, container.get("resources") or {})
    return draft


def _without_revision(uri: str) -> tuple[str, str | None]:
    """Return the address, and the revision that may follow a Hugging Face id after a colon."""
    scheme, separator, rest = uri.partition("://")
    name, _, revision = rest.partition(":") if scheme == "hf" else (rest, "", "")
    return f"{scheme}{separator}{name}", revision or None


def _replicas(draft: Draft, predictor: Mapping[str, Any]) -> None:
    least, most = predictor.get("minReplicas"), predictor.get("maxReplicas")
    if least == 0:
        draft.note("minReplicas: 1 is written for 0: no replica would count the requests that wait")
    least = max(1, int(1 if least is None else least))
    if most and int(most) > least:
        draft.spec.pop("replicas", None)
        draft.spec["autoscaling"] = {"minReplicas": least, "maxReplicas": int(most)}
        return
    draft.spec["replicas"] = least
    if not most:
        draft.note(f"replicas: {least} is written, as KServe's object has no maxReplicas; or set spec.autoscaling")


def _note(draft: Draft, given: Mapping[str, Any]) -> None:
    for name, advice in _NO_COUNTERPART.items():
        if given.get(name) is not None:
            draft.note(f"{name} was left out: {advice}")
