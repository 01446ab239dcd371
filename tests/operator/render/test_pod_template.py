"""podTemplate takes precedence, as a strategic merge: fields that it names change, all others stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo_operator.api.names import pod_labels, selector
from octavo_operator.api.resource import InvalidLLMServiceError, parse
from octavo_operator.render import RenderConfig, render
from octavo_operator.render.pod_template import merge_pod_template
from tests.operator.bad_llmservices import VALID, merged

BASE: dict[str, Any] = {
    "metadata": {"labels": {"own": "yes"}},
    "spec": {
        "terminationGracePeriodSeconds": 150,
        "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "engine",
                "image": "octavo",
                "args": ["serve", "x"],
                "env": [{"name": "HOME", "value": "/h"}, {"name": "KEY", "valueFrom": {"fieldRef": {}}}],
                "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
                "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "8Gi"}},
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    },
}  # fmt: skip


def spec(patch: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec after the patch; neither side is changed by merging."""
    base, given = copy.deepcopy(BASE), copy.deepcopy(patch)
    result = merge_pod_template(base, {"spec": given})
    assert (base, given) == (BASE, patch)
    found: dict[str, Any] = result["spec"]
    return found


def engine(patch: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = spec({"containers": [{"name": "engine", **patch}]})["containers"][0]
    return found


ENGINE = BASE["spec"]["containers"][0]
MOUNTS = ENGINE["volumeMounts"]


def test_nothing_named_nothing_changed() -> None:
    assert merge_pod_template(BASE, {}) == BASE
    assert spec({}) == BASE["spec"]
    assert engine({}) == ENGINE


def test_values_are_replaced_and_mappings_merged() -> None:
    changed = spec({"terminationGracePeriodSeconds": 5, "securityContext": {"fsGroup": 7}, "hostIPC": True})
    assert changed["terminationGracePeriodSeconds"] == 5
    assert changed["securityContext"] == {"runAsUser": 10001, "fsGroup": 7}
    assert changed["hostIPC"] is True
    assert changed["containers"] == BASE["spec"]["containers"]


def test_null_removes() -> None:
    assert "securityContext" not in spec({"securityContext": None})
    assert spec({"securityContext": {"fsGroup": None}})["securityContext"] == {"runAsUser": 10001}
    assert spec({"not-there": None}) == BASE["spec"]


def test_containers_are_merged_by_name_and_others_added() -> None:
    containers = spec({"containers": [{"name": "side", "image": "s"}, {"name": "engine", "image": "mine"}]})[
        "containers"
    ]
    assert [container["name"] for container in containers] == ["engine", "side"]
    assert containers[0] == {**ENGINE, "image": "mine"}


@pytest.mark.parametrize(
    ("field", "item", "expected"),
    [
        ("env", {"name": "HOME", "value": "/mine"}, [{"name": "HOME", "value": "/mine"}, ENGINE["env"][1]]),
        ("env", {"name": "KEY", "value": "v"}, [ENGINE["env"][0], {"name": "KEY", "value": "v"}]),
        ("env", {"name": "NEW", "value": "v"}, [*ENGINE["env"], {"name": "NEW", "value": "v"}]),
        ("ports", {"containerPort": 8000, "name": "web"}, [{"name": "web", "containerPort": 8000, "protocol": "TCP"}]),
        ("ports", {"containerPort": 9, "name": "x"}, [*ENGINE["ports"], {"containerPort": 9, "name": "x"}]),
        ("volumeMounts", {"mountPath": "/tmp", "name": "big"}, [{"name": "big", "mountPath": "/tmp"}, MOUNTS[1]]),
        ("volumeMounts", {"mountPath": "/new", "name": "tmp"}, [*MOUNTS, {"mountPath": "/new", "name": "tmp"}]),
    ],
)  # fmt: skip
def test_lists_of_a_container_are_merged_by_their_keys(field: str, item: dict[str, Any], expected: list[Any]) -> None:
    assert engine({field: [item]}) == {**ENGINE, field: expected}


def test_other_lists_are_replaced_as_a_whole() -> None:
    assert engine({"args": ["serve", "y"]})["args"] == ["serve", "y"]
    assert spec({"tolerations": [{"key": "spot"}]})["tolerations"] == [{"key": "spot"}]


def test_a_volume_of_another_kind_takes_the_place_of_the_one_before() -> None:
    patch = [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "tmp", "hostPath": {"path": "/x"}}]
    volumes = spec({"volumes": patch})["volumes"]
    assert volumes == [
        {"name": "tmp", "hostPath": {"path": "/x"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]


def test_directives_delete_and_replace() -> None:
    assert [v["name"] for v in spec({"volumes": [{"name": "tmp", "$patch": "delete"}]})["volumes"]] == ["shm"]
    assert spec({"volumes": [{"name": "none", "$patch": "delete"}]}) == BASE["spec"]
    assert spec({"volumes": [{"$patch": "replace"}, {"name": "a"}]})["volumes"] == [{"name": "a"}]
    assert spec({"securityContext": {"$patch": "replace", "fsGroup": 1}})["securityContext"] == {"fsGroup": 1}
    assert "securityContext" not in spec({"securityContext": {"$patch": "delete"}})


def test_an_order_of_names_that_is_always_the_same() -> None:
    patch = {"spec": {"volumes": [{"name": "b"}, {"name": "a"}]}, "metadata": {"labels": {"z": "1", "a": "2"}}}
    assert repr(merge_pod_template(BASE, patch)) == repr(merge_pod_template(copy.deepcopy(BASE), copy.deepcopy(patch)))
    assert [volume["name"] for volume in merge_pod_template(BASE, patch)["spec"]["volumes"]] == ["tmp", "shm", "b", "a"]


def test_the_labels_by_which_pods_are_found_stay() -> None:
    template = merge_pod_template(BASE, {"metadata": {"labels": {"own": "no", "mine": "1"}, "annotations": {"a": "b"}}})
    assert template["metadata"] == {"labels": {"own": "yes", "mine": "1"}, "annotations": {"a": "b"}}


@pytest.mark.parametrize("label", pod_labels("x"))
def test_a_pod_template_that_sets_a_selector_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidLLMServiceError) as refused:
        parse(merged(VALID, {"spec": {"podTemplate": {"metadata": {"labels": {label: "mine"}}}}}))
    assert "Octavo finds its pods by these labels" in str(refused.value)
    assert "spec.podTemplate.metadata.labels" in str(refused.value)


def test_the_selector_finds_the_pods_of_a_service_with_a_template_of_its_own() -> None:
    pod = {"hostNetwork": True, "containers": [{"name": "engine", "tty": True}]}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": pod}
    service = parse(merged(VALID, {"spec": {"podTemplate": template}}))
    (found,) = [each for each in render(service, RenderConfig("x")) if each["kind"] == "Deployment"]
    pods = found["spec"]["template"]
    assert found["spec"]["selector"]["matchLabels"] == selector("good")
    assert pods["metadata"]["labels"] == {**pod_labels("good"), "team": "a"}
    assert pods["spec"]["hostNetwork"] is True
    assert pods["spec"]["containers"][0]["tty"] is True
    assert pods["spec"]["containers"][0]["args"][:2] == ["serve", "smollm2"]


def test_null_in_a_spec_reaches_the_template() -> None:
    patch = {"spec": {"containers": [{"name": "engine", "readinessProbe": None}]}}
    service = parse(merged(VALID, {"spec": {"podTemplate": patch}}))
    (found,) = [each for each in render(service, RenderConfig("x")) if each["kind"] == "Deployment"]
    assert "readinessProbe" not in found["spec"]["template"]["spec"]["containers"][0]
