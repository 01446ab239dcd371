"""The CRD is generated from the models, and the repository has it as it is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from octavo_operator.api.crd import custom_resource_definition
from octavo_operator.api.manifest import dump
from tests.operator.golden import ROOT
from tests.quick_yaml import load

VERSION = custom_resource_definition()["spec"]["versions"][0]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_the_file_in_the_repository_is_what_the_command_prints() -> None:
    assert (ROOT / "manifests" / "crd.yaml").read_text() == dump(custom_resource_definition())


def test_no_gitops_tool_prunes_it() -> None:
    """Each LLMService would be deleted with it, and with that what serves."""
    annotations = custom_resource_definition()["metadata"]["annotations"]
    assert annotations["argocd.argoproj.io/sync-options"] == "Prune=false,Delete=false"
    assert annotations["kustomize.toolkit.fluxcd.io/prune"] == "disabled"


def test_columns_are_those_of_the_contract() -> None:
    columns = [column["name"] for column in VERSION["additionalPrinterColumns"]]
    assert columns == ["Model", "Ready", "Desired", "Status", "Phase", "URL", "GPU", "Age"]


def test_it_can_be_scaled_and_selected() -> None:
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert SPEC["properties"]["replicas"]["default"] == 1  # without the field GET …/scale is an InternalError


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if inner:
            yield from fields(inner, f"{path}[]")


def test_every_field_is_described_and_typed() -> None:
    for path, schema in fields(SPEC, "spec"):
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert schema.get("description") or path.endswith("[]"), path


def test_descriptions_say_defaults_once() -> None:
    """`kubectl explain` shows nothing else of them."""
    descriptions = {path: schema["description"] for path, schema in fields(SPEC, "spec") if "description" in schema}
    assert descriptions["spec.autoscaling.targetQueueDepth"] == "Target of waiting requests per replica. Default: 4."
    assert descriptions["spec.rollout.paused"].endswith(" Default: false.")
    assert descriptions["spec.engine.dtype"].endswith(" Default: auto.")
    assert descriptions["spec.rollout"].count("Default") == 0
    for path, schema in fields(SPEC, "spec"):
        if "default" in schema and not isinstance(schema["default"], dict):
            assert descriptions[path].count("Default: ") == 1, path


def test_every_field_has_bounds() -> None:
    """Without them the API server could not bound the cost of the rules, and nonsense would be accepted."""
    for path, schema in fields(SPEC, "spec"):
        match schema.get("type"):
            case "string":
                assert {"enum", "maxLength"} & schema.keys(), path
            case "integer":
                assert {"minimum", "maximum"} <= schema.keys(), path
            case "array":
                assert "maxItems" in schema, path


def test_the_status_has_the_whole_contract_and_requires_no_later_field() -> None:
    status = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    declared = {
        "revision": {"current", "updated", "collisionCount"},
        "model": {"name", "resolvedRevision", "sizeBytes", "memory"},  # memory is ours: what MemoryFits goes by
        "loading": {"phase", "message", "bytesLoaded", "bytesTotal", "lastLoadSeconds"},
        "autoscaling": {"desiredReplicas", "queueDepth", "concurrencyPercent", "lastScaleTime", "message"},
    }
    for name, fields_of in declared.items():
        assert set(status[name]["properties"]) == fields_of
        assert not set(status[name].get("required", ())) - {"name", "phase", "message"}
    adapters = status["adapters"]["items"]["properties"]
    assert set(adapters) == {"name", "loadedReplicas", "replicas"}  # the rows of each replica are ours
    assert set(adapters["replicas"]["items"]["properties"]) == {"pod", "state", "message"}


def test_it_is_plain_yaml_without_aliases() -> None:
    text = dump(custom_resource_definition())
    assert load(text) == custom_resource_definition()
    assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
