"""The rights of users to LLMServices: by the cluster's own roles, and with rights to LLMServices alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operator.bad_llmservices import VALID, merged

from .client import Client, CommandError
from .octavo import installed_operator, wait_for_condition

TENANT = "tenant"
SECRET = {"name": "token", "key": "token"}
MODEL = {"huggingFace": {"repository": "a/b"}, "demo": None}
TOKEN = {"model": {"source": merged(MODEL, {"huggingFace": {"tokenSecretRef": SECRET}})}}
S3 = {"s3": {"bucket": "models", "credentialsSecretRef": {"name": "token"}}, "demo": None}
NEEDS_PODS = {
    "podTemplate": {"podTemplate": {"spec": {"serviceAccountName": "other"}}},
    "engine.image": {"engine": {"image": "registry.example/mine:1"}},
    "model.source.image": {"model": {"source": {"image": {"reference": "registry.example/weights:1"}, "demo": None}}},
    "cache.hostPath": {"cache": {"type": "HostPath", "hostPath": "/mnt/models"}},
}
NEEDS_SECRETS = {
    "token": TOKEN,
    "token of an adapter": {"adapters": [{"name": "sql", "source": TOKEN["model"]["source"]}]},
    "credentials": {"model": {"source": S3}},
    "variable": {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": SECRET}}]}},
    "variables": {"engine": {"envFrom": [{"secretRef": {"name": "token"}}]}},
    "pull secret": {"engine": {"imagePullSecrets": [{"name": "token"}]}},
    "keys": {"auth": {"apiKeysSecretRef": {"name": "token"}}},
}


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide, with the guard."""
    with installed_operator(cluster, "--set", "guard.enabled=true") as system:
        yield system


def may(client: Client, user: str, verb: str, subresource: str = "") -> bool:
    asked = ("auth", "can-i", verb, "llmservices", f"--subresource={subresource}", f"--as={user}")
    try:
        return client.kubectl(*asked).strip() == "yes"
    except CommandError as error:  # how kubectl says no
        assert error.code == 1, error
        return False


def test_who_may_view_or_edit_a_namespace_may_do_so_with_its_services(operator: Client, namespace: Client) -> None:
    for role in ("view", "edit"):
        namespace.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
    namespace.wait_until(lambda: may(namespace, "viewer", "get"), 30, "the role view is aggregated")
    namespace.wait_until(lambda: may(namespace, "editer", "create"), 30, "the role edit is aggregated")
    assert may(namespace, "editer", "patch", "scale")
    assert not may(namespace, "viewer", "create")
    assert not may(namespace, "editer", "patch", "status")


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return an LLMService as a user writes it; None removes a field."""
    made = merged(VALID, {"metadata": {"name": name}, "spec": {"suspend": True, **spec}})
    source = made["spec"]["model"]["source"]
    made["spec"]["model"]["source"] = {key: value for key, value in source.items() if value is not None}
    return made


def refusal(client: Client, made: dict[str, Any], user: str = TENANT, method: str = "POST") -> str:
    """Return the API server's refusal of a request by `user` (empty: the administrator); empty if it is allowed."""
    name = made["metadata"]["name"] if method != "POST" else ""
    headers = {"Impersonate-User": user} if user else {}
    if method == "PATCH":
        headers["Content-Type"] = "application/merge-patch+json"
    path = client.path("llms", name)
    response = client.http.request(method, path, json=made, params={"dryRun": "All"}, headers=headers)
    return "" if response.is_success else str(response.json()["message"])


def granted(client: Client, verb: str, resource: str) -> None:
    name = f"{verb}-{resource}".replace(",", "-").replace(".", "-")
    client.kubectl("create", "role", name, f"--verb={verb}", f"--resource={resource}")
    client.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={TENANT}")


def test_rights_to_llmservices_alone_are_not_those_of_pods_and_secrets(operator: Client, namespace: Client) -> None:
    granted(namespace, "create,patch,get", "llmservices.octavo.dev")
    open_service = {"service": {"type": "LoadBalancer"}}
    namespace.wait_until(lambda: not refusal(namespace, service("plain")), 10, "LLMServices may be made")
    namespace.wait_until(  # an admission policy takes effect some seconds after it is made
        lambda: "right to create pods" in refusal(namespace, service("a", **NEEDS_PODS["engine.image"])), 20, "guarded"
    )
    for field, spec in NEEDS_PODS.items():
        assert f"spec.{field} needs the right to create pods" in refusal(namespace, service("a", **spec)), field
    for case, spec in NEEDS_SECRETS.items():
        said = refusal(namespace, service("a", **spec))
        assert f"that {TENANT} may not read" in said, case
        assert said.endswith("it names token"), case
    maps = {"engine": {"envFrom": [{"configMapRef": {"name": "settings"}}]}}
    assert "names ConfigMaps" in refusal(namespace, service("a", **maps))
    assert "right to create Services" in refusal(namespace, service("a", **open_service))

    namespace.apply(service("theirs", **TOKEN))  # an administrator's, whose Secret must not be sent elsewhere
    elsewhere = {"huggingFace": {"endpoint": "https://mine.example"}}
    patch = {"metadata": {"name": "theirs"}, "spec": {"model": {"source": elsewhere}}}
    assert "names Secrets" in refusal(namespace, patch, method="PATCH")
    scaled = {"metadata": {"name": "theirs"}, "spec": {"replicas": 2}}
    assert refusal(namespace, scaled, method="PATCH") == ""

    for resource in ("pods", "services"):
        granted(namespace, "create", resource)
    granted(namespace, "get", "secrets")
    granted(namespace, "get", "configmaps")
    allowed = [*NEEDS_PODS.values(), *NEEDS_SECRETS.values(), maps, open_service]

    def refused() -> list[str]:
        return list(filter(None, (refusal(namespace, service("a", **spec)) for spec in allowed)))

    namespace.wait_until(lambda: not refused(), 10, lambda: f"a user with the right may ask: {refused()}")


def test_no_model_runs_beside_the_operator_or_in_kube_system(operator: Client, cluster: Client) -> None:
    runs = service("a")
    runs["spec"]["suspend"] = False
    for client in (operator, cluster.in_namespace("kube-system")):
        client.wait_until(
            lambda client=client: "no model may run" in refusal(client, runs, user=""),  # type: ignore[misc]
            20,
            "guarded",
        )


def test_a_folder_of_the_node_is_the_administrators_to_allow(operator: Client, namespace: Client) -> None:
    wanted = merged(VALID, {"spec": {"suspend": False, "cache": {"type": "HostPath", "hostPath": "/mnt/models"}}})
    namespace.apply(wanted)
    made = wait_for_condition(namespace, "good", "Degraded", "PolicyDenied", 30)
    assert "engine.hostPaths" in json.dumps(made["status"]["conditions"])
    assert not namespace.exists("deployment", "good")
