"""The chart and the manifests made from it."""

from __future__ import annotations

import json

import pytest

from tests.operator.bad_llmservices import VALID, merged

from .client import Client, CommandError
from .octavo import (
    CHART,
    MANIFESTS,
    RELEASE,
    accepted_strictly,
    install_crd,
    installed_operator,
    wait_for_condition,
)

RENDER = ("template", "octavo", str(CHART), "--kube-version", "1.36.0")
NOWHERE = {"spec": {"scheduling": {"nodeSelector": {"no-such": "node"}}}}


def test_the_plain_manifests_are_the_rendered_chart(cluster: Client) -> None:
    settings = ("--set", "createNamespace=true,metricsApi.apiService=Always", "--skip-tests")
    rendered = cluster.helm(*RENDER, "--namespace", "octavo-system", *settings)
    assert (MANIFESTS / "install.yaml").read_text() == rendered


def test_the_charts_crd_is_the_one_of_the_manifests() -> None:
    assert (CHART / "files" / "crd.yaml").read_text() == (MANIFESTS / "crd.yaml").read_text()


def test_helm_finds_nothing_to_complain_about(cluster: Client) -> None:
    assert "0 chart(s) failed" in cluster.helm("lint", str(CHART), "--strict")


@pytest.mark.parametrize(
    "setting",
    [
        "engine.imag=x",
        "engine.image.digest=sha256:12",
        "monitoring.enabled=true",
        "monitoring.interval=10m",
        "metricsApi.apiService=yes",
        "operator.image.repository=Not An Image",
        "namespaces={Upper}",
        "operator.logLevel=loud",
    ],
)
def test_a_wrong_value_is_refused(setting: str, cluster: Client) -> None:
    with pytest.raises(CommandError, match="don't meet the specifications of the schema"):
        cluster.helm(*RENDER, "--set", setting)


def test_the_plain_manifests_are_accepted_as_they_are(cluster: Client) -> None:
    """Without the namespace being there only what lies in it is refused; so it is made first, as kubectl would."""
    install_crd(cluster)
    cluster.kubectl("create", "namespace", "octavo-system")
    try:
        cluster.kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(MANIFESTS / "install.yaml")
        )
    finally:
        cluster.kubectl("delete", "namespace", "octavo-system", "--wait=false")


def test_what_it_renders_is_accepted_strictly(cluster: Client, namespace: Client, monitoring_crds: None) -> None:
    """The real API server and the real CRDs of the Prometheus Operator treat an unknown field as an error."""
    install_crd(cluster)
    # A dry run makes no account, and the test's pod is only accepted with one.
    namespace.kubectl("create", "serviceaccount", "octavo-operator-test")
    files = sorted((CHART / "ci").glob("*.yaml"))
    for values in files:
        watched = ("--set", f"namespaces={{{namespace.namespace}}}") if "namespaces:" in values.read_text() else ()
        rendered = namespace.helm(*RENDER, "--namespace", namespace.namespace, "-f", str(values), *watched)
        accepted = accepted_strictly(namespace, rendered)
        assert len(accepted) == rendered.count("\nkind: "), values.name
    assert files


def test_an_operator_of_one_namespace_needs_no_more_than_roles_in_it(cluster: Client, namespace: Client) -> None:
    with installed_operator(cluster, "--set", f"namespaces={{{namespace.namespace}}}") as system:
        roles = system.kubectl("get", "clusterroles", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "json")
        assert not json.loads(roles)["items"]
        not_mine = merged(VALID, {**NOWHERE, "metadata": {"name": "not-mine"}})
        system.apply(not_mine)
        namespace.apply(merged(VALID, NOWHERE))
        wait_for_condition(namespace, "good", "Ready", "Unschedulable")
        assert "status" not in system.get("llms", "not-mine")


def test_uninstalling_keeps_services_and_pods_and_a_second_install_takes_them_on(
    cluster: Client, namespace: Client
) -> None:
    with installed_operator(cluster):
        namespace.apply(merged(VALID, NOWHERE))
        before = wait_for_condition(namespace, "good", "Ready", "Unschedulable")
        (pod,) = namespace.list("pods")
    assert namespace.get("llms", "good")["metadata"]["uid"] == before["metadata"]["uid"]
    with installed_operator(cluster):
        namespace.kubectl("scale", "llms/good", "--replicas=2")
        namespace.wait_until(lambda: namespace.get("deployment", "good")["spec"]["replicas"] == 2, 30, "it is scaled")
        assert pod["metadata"]["uid"] in [found["metadata"]["uid"] for found in namespace.list("pods")]
