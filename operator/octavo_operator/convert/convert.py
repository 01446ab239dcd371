"""Selects the converter for each object of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.manifest import objects_in
from octavo_operator.api.resource import InvalidLLMServiceError, parse
from octavo_operator.convert.draft import Draft, NotConvertibleError
from octavo_operator.convert.kserve import convert_inference_service, convert_llm_inference_service
from octavo_operator.convert.kubeai import convert_model
from octavo_operator.convert.vllm import convert_workload, runs_vllm

_WORKLOADS = ("Deployment", "StatefulSet")
_OF_GROUPS = {
    ("kubeai.org", "Model"): convert_model,
    ("serving.kserve.io", "InferenceService"): convert_inference_service,
    ("serving.kserve.io", "LLMInferenceService"): convert_llm_inference_service,
}


@dataclass
class Conversions:
    """LLMServices as manifests, sentences about what to decide, and sentences about what could not be converted."""

    manifests: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def convert(documents: Sequence[Mapping[str, Any]]) -> Conversions:
    """Return the LLMServices of all objects that serve a model; objects that serve none are ignored."""
    objects = [one for document in documents for one in objects_in(document)]
    scalers = [one for one in objects if one.get("kind") == "HorizontalPodAutoscaler"]
    found = Conversions()
    for one in objects:
        metadata = one.get("metadata")
        name = f"{one.get('kind')} {metadata.get('name') if isinstance(metadata, Mapping) else None}"
        try:
            draft = _draft(one, scalers)
            manifest = draft.manifest() if draft else None
        except NotConvertibleError as error:
            found.problems.append(f"{name}: not converted: {error}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found.problems.append(f"{name}: not converted: it does not have the form of its kind ({error!r})")
        else:
            if draft and manifest:
                _add(found, draft, manifest)
    if not found.manifests and not found.problems:
        found.problems.append(
            "no Model of KubeAI, InferenceService of KServe, Deployment or StatefulSet that runs vLLM was found"
        )
        if any("kind" not in one for one in objects):
            found.problems.append(
                "objects without a kind are perhaps the values of a chart: convert what the chart makes of them, with "
                "helm template CHART --values FILE | octavo-operator convert -"
            )
    return found


def _draft(one: Mapping[str, Any], scalers: Sequence[Mapping[str, Any]]) -> Draft | None:
    kind, group = str(one.get("kind")), str(one.get("apiVersion", "")).partition("/")[0]
    if (converter := _OF_GROUPS.get((group, kind))) is not None:
        return converter(one)
    return convert_workload(one, scalers) if kind in _WORKLOADS and runs_vllm(one) else None


def _add(found: Conversions, draft: Draft, manifest: dict[str, Any]) -> None:
    found.manifests.append(manifest)
    found.notes += [f"{draft.kind}: {note}" for note in draft.notes]
    try:
        parse(manifest)
    except InvalidLLMServiceError as error:
        found.notes += [f"{draft.kind}: to be corrected before it is applied: {problem}" for problem in error.problems]
