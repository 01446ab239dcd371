"""The API server refuses invalid LLMServices with the sentences that `octavo-operator check` also prints."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.operator.bad_llmservices import BAD, FROM_A_TEMPLATE, GONE, VALID, Bad, merged
from tests.operator.golden import deployment, inputs

from .client import Client, CommandError, as_yaml
from .conftest import new_namespace
from .octavo import install_crd

PATH = "/apis/octavo.dev/v1alpha1/namespaces/default/llmservices"


@pytest.fixture(scope="module")
def crd(cluster: Client) -> Iterator[Client]:
    """The CRD of manifests/, served."""
    install_crd(cluster)
    cluster.kubectl("wait", "--for=condition=Established", "crd/llmservices.octavo.dev", "--timeout=180s")
    cluster.wait_until(lambda: cluster.http.get(PATH).status_code == 200, 30, "LLMServices are served")
    return cluster


def create(client: Client, manifest: dict[str, Any]) -> tuple[int, str]:
    """Status and message of the API server for the object, which it does not keep. Strict, as kubectl asks."""
    answer = client.http.post(PATH, params={"dryRun": "All", "fieldValidation": "Strict"}, json=manifest)
    return answer.status_code, answer.json().get("message", "")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_refuses_in_words(bad: Bad, crd: Client) -> None:
    code, message = create(crd, bad.manifest)
    assert code in (400, 422), message
    assert (bad.server_words or bad.words).lower() in message.lower()


@pytest.mark.parametrize("case", inputs())
def test_accepts_what_check_accepts(case: str, crd: Client) -> None:
    manifest = yaml.safe_load(inputs()[case].read_text())
    manifest["metadata"] = {"name": manifest["metadata"]["name"]}
    code, message = create(crd, manifest)
    assert code == 201, message


def test_accepts_nulls_and_whole_numbers_with_an_exponent(crd: Client) -> None:
    code, message = create(crd, FROM_A_TEMPLATE)
    assert code == 201, message


ELSEWHERE = ("priorityClassName", "runtimeClassName", "serviceAccountName")
"""What a pod names that other clusters and namespaces have, and these have not."""
ON_THE_NODE = {"node-cache"}
"""A cache in a folder of the node: no Pod Security Standard but `privileged` admits hostPath volumes."""


@pytest.fixture(scope="module")
def restricted(cluster: Client) -> Iterator[Client]:
    """A client of a namespace that enforces the restricted standard; one for all cases, as each costs half a second of
    CPU time, most of it to delete what there may be of each kind."""
    with new_namespace(cluster, "restricted", {"pod-security.kubernetes.io/enforce": "restricted"}) as client:
        yield client


def admitted(case: str, restricted: Client) -> tuple[int, str]:
    """Return the API server's answer to the case's pod in a namespace that enforces the restricted standard."""
    template = deployment(case)["spec"]["template"]
    pod = {name: value for name, value in template["spec"].items() if name not in ELSEWHERE}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
    path, params = restricted.path("pods"), {"dryRun": "All", "fieldValidation": "Strict"}
    answer = restricted.http.post(path, params=params, json=manifest)
    return answer.status_code, answer.text


@pytest.mark.parametrize("case", sorted(inputs().keys() - ON_THE_NODE))
def test_pods_are_admitted_where_the_restricted_standard_is_enforced(case: str, restricted: Client) -> None:
    code, text = admitted(case, restricted)
    assert code == 201, text


@pytest.mark.parametrize("case", sorted(ON_THE_NODE))
def test_the_restricted_standard_has_nothing_against_a_pod_but_its_folder_of_the_node(
    case: str, restricted: Client
) -> None:
    code, text = admitted(case, restricted)
    assert (code, "hostPath" in text, "own-cache" in text) == (403, True, True), text
    assert not re.search(r"\b(engine|fetch)\b", text.partition("violates PodSecurity")[2]), text


def test_kubectl_shows_the_sentence(crd: Client) -> None:
    with pytest.raises(CommandError, match="exactly one source must be set"):
        crd.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(BAD[0].manifest))


CACHE = {"type": "PersistentVolumeClaim", "size": "10Gi", "storageClassName": "fast"}
CHANGES = [
    ({"size": "9Gi"}, "size may grow but not shrink"),
    ({"storageClassName": "slow"}, "storageClassName cannot change"),
    ({"storageClassName": GONE}, "storageClassName cannot change"),
    ({"accessMode": "ReadWriteOnce"}, "accessMode cannot change"),
    ({"size": "20Gi"}, ""),
    ({"type": "Ephemeral", "storageClassName": GONE}, ""),
]


def test_what_may_change_later(crd: Client, namespace: Client) -> None:
    before = merged(VALID, {"spec": {"cache": CACHE}})
    namespace.apply(before)
    for change, words in CHANGES:
        after = as_yaml(copy.deepcopy(merged(before, {"spec": {"cache": change}})))
        refused = pytest.raises(CommandError, match=words) if words else contextlib.nullcontext()
        with refused:
            namespace.kubectl("apply", "--dry-run=server", "-f", "-", input=after)


def test_kubectl_explain_reads_well(crd: Client) -> None:
    said = crd.kubectl("explain", "llmservice.spec.engine.maxModelLength")
    assert "Longest context in tokens" in said
    assert "IN PLACE" not in said
    assert "Set exactly one field" in crd.kubectl("explain", "llmservice.spec.model.source")
    assert "requests per replica. Default: 4." in crd.kubectl("explain", "llmservice.spec.autoscaling")


def test_a_service_that_scales_by_itself_cannot_be_scaled_by_hand(crd: Client, namespace: Client) -> None:
    namespace.apply(merged(VALID, {"spec": {"autoscaling": {"maxReplicas": 3}}}))
    scale = namespace.http.get(f"{namespace.path('llms', 'good')}/scale")
    assert (scale.status_code, scale.json()["spec"]) == (200, {"replicas": 1})  # without the field: an InternalError
    with pytest.raises(CommandError, match="set replicas or autoscaling, not both"):
        namespace.kubectl("scale", "llms/good", "--replicas=2")
