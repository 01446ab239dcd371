"""The CustomResourceDefinition, made from the models: `octavo-operator crd` prints it."""

from __future__ import annotations

import json
from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.names import API_VERSION, GROUP, KIND, PLURAL, VERSION
from octavo_operator.api.resource import LLMService
from octavo_operator.api.schema import VALIDATIONS
from octavo_operator.api.status import LLMServiceStatus

Schema = dict[str, Any]

_COLUMNS = (
    ("Model", "string", ".status.model.name", 0, "Name in the OpenAI API."),
    ("Ready", "integer", ".status.readyReplicas", 0, "Pods that answer requests."),
    ("Desired", "integer", ".status.desiredReplicas", 0, "Number of pods that should run."),
    ("Status", "string", '.status.conditions[?(@.type=="Ready")].reason', 0, "Reason of the condition Ready."),
    ("Phase", "string", ".status.loading.phase", 0, "Phase of the pod that has progressed furthest."),
    ("URL", "string", ".status.url", 1, "Base URL of the OpenAI API within the cluster."),
    ("GPU", "integer", ".spec.accelerator.count", 1, "GPUs of one replica."),
    ("Age", "date", ".metadata.creationTimestamp", 0, ""),
)
_NOT_PRUNED = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
}
"""With its CRD each LLMService is deleted, and with that what serves: GitOps tools leave the CRD where it is."""


def custom_resource_definition() -> Schema:
    """Return the CRD as a plain object, ready to be written as YAML."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"annotations": _NOT_PRUNED, "name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["llms"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "conversion": {"strategy": "None"},  # docs/concepts/api-versions.md
            "versions": [_version()],
        },
    }


def _version() -> Schema:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": LLMService.__doc__,
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string", "description": f"{API_VERSION}."},
                    "kind": {"type": "string", "description": f"{KIND}."},
                    "metadata": {"type": "object"},
                    "spec": structural(LLMServiceSpec.model_json_schema(by_alias=True)),
                    "status": _status(),
                },
                VALIDATIONS: [rule.as_validation() for rule in LLMService.rules],
            }
        },
    }


def _status() -> Schema:
    """Return the schema of the status. No field is required: a status may say only that the object is invalid."""
    schema = structural(LLMServiceStatus.model_json_schema(by_alias=True))
    return {key: value for key, value in schema.items() if key != "required"}


def _column(name: str, kind: str, path: str, priority: int, description: str) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        column["priority"] = priority
    if description:
        column["description"] = description
    return column


def structural(schema: Schema) -> Schema:
    """Return a Kubernetes structural schema from pydantic's: references inlined, no `null` branches, no titles."""
    return _structural(schema, schema.get("$defs", {}))


_LEFT_OUT = {
    "$defs",
    "$ref",
    "title",
    "anyOf",
    "allOf",
    "const",
    "properties",
    "items",
    "additionalProperties",
    "default",
}


def _structural(schema: Schema, definitions: Schema) -> Schema:
    schema = _resolved(schema, definitions)
    result = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if "x-kubernetes-int-or-string" in schema:
        result["anyOf"] = schema["anyOf"]
    if "properties" in schema:
        result["properties"] = {name: _structural(value, definitions) for name, value in schema["properties"].items()}
    if "items" in schema:
        result["items"] = _structural(schema["items"], definitions)
    # `additionalProperties: false` is what a structural schema means anyway, and `true` may not stand beside free form.
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    default = schema.get("default")
    if default == {}:  # written out, since the API server judges a default by the rules before it fills it in
        default = {name: inner["default"] for name, inner in result["properties"].items() if "default" in inner}
    if default not in (None, [], ""):
        result["default"] = default
        result["description"] = result.get("description", "") + default_sentence(default)
    return result


def default_sentence(default: Any) -> str:
    """Return the sentence about a field's default that ends its description: `kubectl explain` shows no defaults.

    A section gets none: its fields have their own.
    """
    if isinstance(default, dict):
        return ""
    return f" Default: {default if isinstance(default, str) else json.dumps(default)}."


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    """Return `schema` with its reference, or the one branch of `X | null`, folded into it; its own keys win."""
    if "x-kubernetes-int-or-string" in schema:
        return schema
    if "$ref" in schema:
        inner = _resolved(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    elif "anyOf" in schema:
        (branch,) = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        inner = _resolved(branch, definitions)
    else:
        return schema
    merged = {**inner, **{key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}}
    if VALIDATIONS in inner and VALIDATIONS in schema:
        merged[VALIDATIONS] = [*inner[VALIDATIONS], *schema[VALIDATIONS]]
    return merged
