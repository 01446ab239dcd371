"""Rendering is pure: an LLMService gives the same objects, byte for byte, until somebody changes a golden file."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from tests.operator.golden import GOLDEN, deployment, inputs, rendered


@pytest.mark.parametrize("case", inputs())
def test_renders_what_it_always_rendered(case: str) -> None:
    assert rendered(inputs()[case]) == (GOLDEN / case / "expected.yaml").read_text()


@pytest.mark.parametrize("case", inputs())
def test_renders_only_fields_that_kubernetes_has(case: str) -> None:
    for manifest in yaml.safe_load_all((GOLDEN / case / "expected.yaml").read_text()):
        kubernetes_validate.validate(manifest, "1.36", strict=True)


def test_no_golden_file_is_left_over() -> None:
    assert {path.parent.name for path in GOLDEN.glob("*/expected.yaml")} == set(inputs())


@pytest.mark.parametrize("case", inputs())
def test_pods_keep_the_restricted_standard(case: str) -> None:
    pod = deployment(case)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/home/octavo", "/dev/shm", "/cache"}
    assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + drain(
        container
    )


def drain(container: dict) -> int:
    (flag,) = [argument for argument in container["args"] if argument.startswith("--drain-timeout=")]
    return int(flag.partition("=")[2])
