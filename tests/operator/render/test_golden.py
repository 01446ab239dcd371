"""Rendering is pure: an LLMService gives the same objects, byte for byte, until a golden file is changed."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.render import OPTIONAL_KINDS
from tests.operator.golden import (
    GOLDEN,
    ROOT,
    container,
    deployment,
    fetched,
    init_containers,
    inputs,
    llmservice,
    rendered,
)
from tests.operator.published_schemas import validate
from tests.quick_yaml import load_all


@pytest.mark.parametrize("case", inputs())
def test_renders_what_it_always_rendered(case: str) -> None:
    assert rendered(inputs()[case]) == (GOLDEN / case / "expected.yaml").read_text()


@pytest.mark.parametrize("minor", ["1.31", "1.36"])
@pytest.mark.parametrize("case", inputs())
def test_renders_only_fields_that_kubernetes_has(case: str, minor: str) -> None:
    """The oldest and the newest: fields of stable versions do not go, and the tests run the newest only."""
    for manifest in load_all((GOLDEN / case / "expected.yaml").read_text()):
        if manifest["kind"] in OPTIONAL_KINDS:  # not Kubernetes' own: judged in tests/cluster by their real CRDs
            continue
        validate(manifest, minor)


def test_pods_that_do_not_serve_keep_no_node_from_draining() -> None:
    """Neither an engine's nor the operator's."""
    files = [*GOLDEN.glob("*/expected.yaml"), ROOT / "manifests" / "install.yaml"]
    manifests = [manifest for file in files for manifest in load_all(file.read_text())]
    budgets = [manifest for manifest in manifests if manifest["kind"] == "PodDisruptionBudget"]
    assert {budget["metadata"]["name"] for budget in budgets} >= {"smollm2", "octavo-operator"}
    assert {budget["spec"].get("unhealthyPodEvictionPolicy") for budget in budgets} == {"AlwaysAllow"}


def test_no_golden_file_is_left_over() -> None:
    assert {path.parent.name for path in GOLDEN.glob("*/expected.yaml")} == set(inputs())


OURS = ("engine", "fetch")


@pytest.mark.parametrize("case", inputs())
def test_pods_keep_the_restricted_standard(case: str) -> None:
    pod = deployment(case)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    containers = [each for each in (*pod["containers"], *init_containers(case)) if each["name"] in OURS]
    assert containers
    for each in containers:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert {mount["mountPath"] for mount in each["volumeMounts"]} >= {"/tmp", "/home/octavo", "/cache"}


@pytest.mark.parametrize("case", inputs())
def test_only_a_folder_of_the_node_needs_root_and_only_to_hand_it_over(case: str) -> None:
    pod = deployment(case)["spec"]["template"]["spec"]
    as_root = [each["name"] for each in init_containers(case) if each["securityContext"].get("runAsUser") == 0]
    assert as_root == (["own-cache"] if any("hostPath" in volume for volume in pod["volumes"]) else [])
    for name in as_root:
        root = container(case, name, "initContainers")
        assert root["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert [mount["mountPath"] for mount in root["volumeMounts"]] == ["/cache"]
        (of_the_node,) = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
        assert of_the_node == f"{llmservice(inputs()[case]).spec.cache.host_path}/octavo-cache/default", "its own"


@pytest.mark.parametrize("case", inputs())
def test_a_pod_is_given_the_time_that_it_needs_to_drain(case: str) -> None:
    pod, engine = deployment(case)["spec"]["template"]["spec"], container(case)
    pause = engine["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > pause + int(value_of(engine, "drain-timeout"))
    # The pod is out of every Service before its engine stops to take requests.
    ready = engine["readinessProbe"]
    assert pause > ready["periodSeconds"] * ready["failureThreshold"]


@pytest.mark.parametrize("case", fetched())
def test_what_is_fetched_is_what_is_served_and_only_the_fetching_has_secrets(case: str) -> None:
    fetch, engine = container(case, "fetch", "initContainers"), container(case)
    assert value_of(fetch, "link") == engine["args"][1]
    assert fetch["image"] == engine["image"]
    assert fetch["resources"] == engine["resources"]
    names = {variable["name"] for variable in engine["env"]}
    assert not names & {"HF_TOKEN", "HF_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]
    assert "HF_HUB_OFFLINE" not in {variable["name"] for variable in fetch["env"]}
    shared = {mount["name"]: mount for mount in engine["volumeMounts"]}
    for mount in fetch["volumeMounts"]:
        if mount["name"] in ("cache", "home"):
            assert shared[mount["name"]] == mount


def value_of(container: dict[str, Any], flag: str) -> str:
    (found,) = [argument for argument in container["args"] if argument.startswith(f"--{flag}=")]
    return str(found.partition("=")[2])
