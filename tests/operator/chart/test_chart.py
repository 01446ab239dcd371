"""The chart's output without a cluster, with an APIService of another server, and as a subchart."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from docs.chart import README, page, values
from octavo_operator.api.manifest import load
from octavo_operator.api.names import METRICS_API_NAME, METRICS_API_SERVICE, NAME_LABEL
from tests.cluster import pki
from tests.cluster.build import HELM, ensure_built, program
from tests.cluster.octavo import CHART
from tests.operator.bad_llmservices import merged
from tests.operator.chart_golden import GOLDEN, SETTINGS, change
from tests.operator.published_schemas import validate
from tests.quick_yaml import dump, load_all
from tests.quick_yaml import load as load_yaml

Object = dict[str, Any]
INSTALL = CHART.parents[1] / "docs" / "how-to" / "install.md"


@pytest.fixture(scope="module", autouse=True)
def helm_is_built() -> None:
    ensure_built(print, (HELM,))


def helm(*arguments: str) -> str:
    command = [str(program("helm", (HELM,))), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def template(*arguments: str, chart: Path = CHART, release: str = "octavo", namespace: str = "llm") -> list[Object]:
    """The objects that are rendered."""
    to = ("template", release, str(chart), "--kube-version", "1.36.0", "--namespace", namespace)
    return [found for found in load_all(helm(*to, *arguments)) if found]


def chart_with_notes(folder: Path) -> Path:
    """A copy of the chart in `folder` that renders NOTES.txt as an object: `helm template` does not show it."""
    if not (chart := folder / "octavo").exists():
        shutil.copytree(CHART, chart)
        (chart / "templates" / "NOTES.txt").rename(chart / "notes")
        (chart / "templates" / "notes.yaml").write_text(
            'kind: Notes\nmetadata: {name: n}\nnotes: {{ tpl (.Files.Get "notes") . | toJson }}\n'
        )
    return chart


def notes_of(objects: list[Object]) -> str:
    """The text of NOTES.txt among the objects of such a copy."""
    (found,) = [each for each in objects if each["kind"] == "Notes"]
    return str(found["notes"])


def optional_values(schema: Object, given: Any, whole: bool) -> Object:
    """`null` for each value that the schema does not demand: for `whole` sections, or for the values in them."""
    found: Object = {}
    for name, inner in schema["properties"].items():
        if not isinstance(given, dict) or name not in given:
            continue
        within = optional_values(inner, given[name], whole) if "properties" in inner else {}
        if name not in schema.get("required", ()) and (whole or not within):
            found[name] = None
        elif within:
            found[name] = within
    return found


@pytest.mark.parametrize("whole", [True, False])
def test_a_value_that_is_not_there_counts_as_its_default(whole: bool, tmp_path: Path) -> None:
    """As after an upgrade with --reuse-values, or where a parent chart sets a section to null."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    missing = optional_values(schema, load_yaml((CHART / "values.yaml").read_text()), whole)
    assert missing["operator"]["serviceAccount"] == (None if whole else {"name": None, "annotations": None})
    (tmp_path / "values.yaml").write_text(dump(missing))
    made = template("--values", str(tmp_path / "values.yaml"), chart=chart_with_notes(tmp_path))
    accounts = {each["metadata"]["name"] for each in made if each["kind"] == "ServiceAccount"}
    assert accounts == {"octavo-operator", "octavo-operator-metrics", "octavo-operator-test"}
    assert "engine.networkPolicy.enabled=true" in notes_of(made)


def api_services(objects: list[Object]) -> list[Object]:
    return [found for found in objects if found["kind"] == "APIService"]


@dataclass
class ApiServer:
    """A stand-in for the API server that answers helm's `lookup`, with one APIService or none."""

    folder: Path
    api_service: Object | None = None
    asked: list[str] = field(default_factory=list)

    def settings(self, port: int) -> tuple[str, ...]:
        """Return helm's flags for asking it."""
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        known = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
        (self.folder / "kubeconfig").write_text(dump({"apiVersion": "v1", "kind": "Config", **known}))
        return ("--dry-run=server", "--kubeconfig", str(self.folder / "kubeconfig"))

    def answer(self, path: str) -> Object | None:
        """The answer of a GET; None: not found."""
        self.asked.append(path)
        kinds = {
            "/api/v1": ("namespaces", "Namespace"),
            "/apis/apiregistration.k8s.io/v1": ("apiservices", "APIService"),
        }
        if path in kinds:
            name, kind = kinds[path]
            resource = {"name": name, "singularName": "", "namespaced": False, "kind": kind, "verbs": ["get"]}
            version = path.removeprefix("/apis/").removeprefix("/api/")
            return {"kind": "APIResourceList", "groupVersion": version, "resources": [resource]}
        if path == "/api/v1/namespaces/kube-system":
            return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
        if path == f"/apis/apiregistration.k8s.io/v1/apiservices/{METRICS_API_SERVICE}":
            return self.api_service
        return None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiServer, tuple[str, ...]]]:
    """An API server, and the settings by which helm asks it."""
    server = ApiServer(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = server.answer(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            text = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield server, server.settings(http.server_port)
        http.shutdown()
        thread.join()


def claimed_by(release: str, namespace: str) -> Object:
    annotations = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace}
    metadata = {"name": METRICS_API_SERVICE, "annotations": annotations}
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": {}}


@pytest.mark.parametrize(("choice", "made"), [("Auto", 0), ("Always", 1), ("Never", 0)])
def test_without_a_cluster_to_look_at_the_clusters_api_service_is_claimed_only_if_set(choice: str, made: int) -> None:
    """Argo CD renders it so, in a cluster where KEDA may have it."""
    objects = template("--set", f"metricsApi.apiService={choice}", "--api-versions", "external.metrics.k8s.io/v1beta1")
    assert len(api_services(objects)) == made
    assert [found for found in objects if found["metadata"]["name"] == "octavo-operator-metrics"]


@pytest.mark.parametrize(
    ("live", "choice", "made"),
    [
        (None, "Auto", 1),
        (claimed_by("octavo", "llm"), "Auto", 1),
        (claimed_by("keda", "keda"), "Auto", 0),
        (claimed_by("octavo", "elsewhere"), "Auto", 0),
        (None, "Never", 0),
    ],
)
def test_with_a_cluster_it_is_seen_who_has_it(
    live: Object | None, choice: str, made: int, cluster: tuple[ApiServer, tuple[str, ...]]
) -> None:
    server, settings = cluster
    server.api_service = live
    found = api_services(template(*settings, "--set", f"metricsApi.apiService={choice}"))
    assert len(found) == made
    assert server.asked
    for each in found:  # by which the operator knows it for Octavo's
        assert each["metadata"]["labels"][NAME_LABEL] == METRICS_API_NAME


def test_the_slot_of_another_server_is_not_taken(cluster: tuple[ApiServer, tuple[str, ...]]) -> None:
    server, settings = cluster
    server.api_service = merged(
        claimed_by("keda", "keda"), {"spec": {"service": {"namespace": "keda", "name": "adapter"}}}
    )
    refusal = r"belongs to another server \(Service keda/adapter\).*metricsApi.apiService"
    with pytest.raises(AssertionError, match=refusal):
        template(*settings, "--set", "metricsApi.apiService=Always")


def operator_arguments(objects: list[Object]) -> list[str]:
    (found,) = [o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"] == "octavo-operator"]
    return list(found["spec"]["template"]["spec"]["containers"][0]["args"])


def readers(objects: list[Object]) -> list[Object]:
    """The roles by which the operator may see who answers for external metrics."""
    bound = {
        each["roleRef"]["name"]
        for each in objects
        if each["kind"] == "ClusterRoleBinding" and each["subjects"][0]["name"] == "octavo-operator"
    }
    roles = [each for each in objects if each["kind"] == "ClusterRole" and each["metadata"]["name"] in bound]
    rules = [rule for role in roles for rule in role["rules"] if rule["resources"] == ["apiservices"]]
    assert all((rule["verbs"], rule["resourceNames"]) == (["get", "delete"], [METRICS_API_SERVICE]) for rule in rules)
    return rules


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ("", True),
        ("namespaces={a,b}", False),
        ("metricsApi.enabled=Never", False),
        ("namespaces={a},metricsApi.enabled=Always", True),
    ],
)
def test_the_operator_gets_the_url_of_a_metrics_api_where_there_is_one(settings: str, runs: bool) -> None:
    objects = template("--set", settings)
    url = "--metrics-url=http://octavo-operator-metrics.llm.svc:8080"
    urls = [each for each in operator_arguments(objects) if each.startswith("--metrics-url")]
    assert urls == ([url] if runs else [])
    assert len(readers(objects)) == runs
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert services == (["octavo-operator-metrics"] if runs else [])


def test_a_metrics_api_that_is_not_well_is_not_restarted_for_it() -> None:
    objects = {each["kind"]: each for each in template() if each["metadata"]["name"] == "octavo-operator-metrics"}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    asked = [container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    assert asked == ["/healthz", "/livez"]
    assert (
        "publishNotReadyAddresses" not in objects["Service"]["spec"]
    )  # a replica that is not trusted yet is not asked
    assert objects["Deployment"]["spec"]["replicas"] == 2


def test_the_registry_goes_before_the_images_of_the_plain_manifests_as_the_docs_say() -> None:
    (line,) = [each for each in INSTALL.read_text().splitlines() if each.startswith("$ sed")]
    command = line.removeprefix("$ ").partition(" | kubectl")[0]
    done = subprocess.run(["bash", "-c", command], cwd=CHART.parents[1], capture_output=True, text=True, check=True)
    deployments = [each for each in load_all(done.stdout) if each["kind"] == "Deployment"]
    containers = [found for each in deployments for found in each["spec"]["template"]["spec"]["containers"]]
    assert {found["image"].partition(":")[0] for found in containers} == {"REGISTRY/octavo-operator"}
    arguments = [argument for found in containers for argument in found["args"]]
    assert [each for each in arguments if each.startswith("--engine-image=REGISTRY/octavo-engine:")]


def test_the_chart_can_be_a_subchart_of_another(tmp_path: Path) -> None:
    """The parent switches it by a condition and shares values of its own with all subcharts."""
    shutil.copytree(CHART, tmp_path / "charts" / "octavo")
    part = {"name": "octavo", "version": "0.1.0", "condition": "octavo.enabled"}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [part]}
    (tmp_path / "Chart.yaml").write_text(dump(chart))
    shared = {"storageClass": "fast", "imageRegistry": "registry.example"}
    values: Object = {"global": shared, "octavo": {"enabled": True, "operator": {"replicas": 3}}}
    (tmp_path / "values.yaml").write_text(dump(values))
    objects = template(chart=tmp_path)
    (operator,) = [
        each for each in objects if each["kind"] == "Deployment" and "metrics" not in each["metadata"]["name"]
    ]
    assert operator["spec"]["replicas"] == 3
    assert operator["spec"]["template"]["spec"]["containers"][0]["image"].startswith(
        "registry.example/octavo-operator:"
    )
    assert not template("--set", "octavo.enabled=false", chart=tmp_path)


def test_every_value_has_a_golden_file() -> None:
    assert {each.name for each in values()} == set(SETTINGS)
    assert {path.stem for path in GOLDEN.glob("*.diff")} == set(SETTINGS)


@pytest.mark.parametrize("value", SETTINGS)
def test_a_value_changes_what_it_says_and_nothing_else(value: str) -> None:
    assert change(value) == (GOLDEN / f"{value}.diff").read_text()


def test_the_readme_is_that_of_the_values() -> None:
    assert README.read_text() == page()


MINORS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
SCHEMAS_OF = {"ValidatingAdmissionPolicy", "Deployment", "Service", "ClusterRole", "NetworkPolicy"}


@pytest.mark.parametrize("minor", MINORS)
def test_each_minor_of_kubernetes_knows_all_fields(minor: str) -> None:
    """The published schemas are used: only the newest minor runs here."""
    everything = CHART / "ci" / "everything-values.yaml"
    objects = template("-f", str(everything), "--kube-version", f"{minor}.0")
    judged = [each for each in objects if each["kind"] in SCHEMAS_OF]
    assert {each["kind"] for each in judged} == SCHEMAS_OF
    for each in judged:
        validate(each, minor)


def test_names_of_digits_stay_strings() -> None:
    """Kubernetes and Helm allow them, and YAML reads 123 without quotes as a number."""
    names = "fullnameOverride=789,operator.serviceAccount.name=012,operator.priorityClassName=345"
    everything = ("-f", str(CHART / "ci" / "everything-values.yaml"))
    for objects in (template(*everything, release="123", namespace="456"), template("--set-string", names)):
        for each in objects:
            text = dump(each)
            assert re.findall(r"(?:name|namespace|instance|Name): \d+$", text, re.MULTILINE) == []
            if each["kind"] in SCHEMAS_OF:
                validate(each, MINORS[-1])


MORE_LABELS = (
    "commonLabels.team=all,commonLabels.release=all,commonLabels.own=yes,operator.podLabels.team=pods,"
    "operator.podLabels.app\\.kubernetes\\.io/name=theirs,monitoring.enabled=Always,monitoring.labels.release=prometheus"
)


def test_each_label_is_set_once_and_the_most_specific_value_wins() -> None:
    """A name that is there twice is refused by Kustomize, Flux and Argo CD."""
    to = ("template", "octavo", str(CHART), "--set", "crd.install=false,dashboards.enabled=Never", "--set", MORE_LABELS)
    contents = [each.content for each in load(helm(*to).encode())]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in contents}
    pod = objects["Deployment", "octavo-operator"]["spec"]["template"]["metadata"]["labels"]
    assert (pod["team"], pod["own"], pod[NAME_LABEL]) == ("pods", "yes", "octavo-operator")
    for kind in ("ServiceMonitor", "PrometheusRule"):
        labels = objects[kind, "octavo-operator"]["metadata"]["labels"]
        assert (labels["team"], labels["release"]) == ("all", "prometheus")


def test_a_release_with_dots_has_services_and_its_namespace_admits_what_it_runs() -> None:
    objects = template("--set", "createNamespace=true,metricsApi.hostNetwork=true", release="my.release")
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert services == ["my-release-operator-metrics"]
    (namespace,) = [each for each in objects if each["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    (namespace, *_) = template("--set", "createNamespace=true,metricsApi.hostNetwork=true,metricsApi.enabled=Never")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("metricsApi.tlsPort=8080", "metricsApi.tlsPort and metricsApi.port are both 8080"),
        ("metricsApi.port=null", "missing property 'port'"),
    ],
)
def test_a_metrics_api_without_two_ports_is_refused(settings: str, words: str) -> None:
    command = [str(program("helm", (HELM,))), "template", "octavo", str(CHART), "--set", settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert words in done.stderr


CEL = {
    # the language and its standard macros
    *("all", "exists", "filter", "map", "has", "size", "type", "string", "int", "duration", "matches"),
    *("startsWith", "endsWith", "contains", "getSeconds", "timestamp"),
    # Kubernetes' libraries of strings (1.23) and of authorization (1.27), optional values and quantities (1.29)
    *("split", "join", "lowerAscii", "replace", "trim"),
    *("authorizer", "group", "resource", "namespace", "name", "check", "allowed"),
    *("orValue", "hasValue", "optional"),
    *("quantity", "isQuantity", "compareTo", "isGreaterThan", "isLessThan", "add", "sub"),
}
"""Functions of CEL that Kubernetes 1.31 has; later ones have more (`format`, `ip`, `sortBy`)."""
EXPRESSIONS = {"rule", "expression", "messageExpression"}


def expressions(body: Any) -> Iterator[str]:
    """All CEL in an object."""
    for name, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        if name in EXPRESSIONS and isinstance(value, str):
            yield value
        else:
            yield from expressions(value)


def test_rules_use_only_what_the_oldest_minor_of_kubernetes_has() -> None:
    objects = template("--set", "guard.enabled=true", "--kube-version", f"{MINORS[0]}.0")
    judged = [each for each in objects if each["kind"] in ("CustomResourceDefinition", "ValidatingAdmissionPolicy")]
    found = {each["kind"]: list(expressions(each)) for each in judged}
    assert {kind: len(rules) > 10 for kind, rules in found.items()} == dict.fromkeys(found, True)
    without_texts = (re.sub(r"'[^']*'|\"[^\"]*\"", "''", rule) for rules in found.values() for rule in rules)
    called = {name for rule in without_texts for name in re.findall(r"(\w+)\(", rule)}
    assert called - CEL == set()


def test_on_openshift_the_cluster_chooses_users() -> None:
    objects = template("--api-versions", "security.openshift.io/v1/SecurityContextConstraints")
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    assert [sorted(pod["securityContext"]) for pod in pods] == [["runAsNonRoot", "seccompProfile"]] * 2
    assert '--engine-defaults={"fixedUser":false}' in operator_arguments(objects)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("--set", "monitoring.enabled=Never"), "monitoring.enabled is Never"),
        ((), "There is no Prometheus Operator in this cluster"),
        (("--api-versions", "monitoring.coreos.com/v1/PrometheusRule"), ""),
    ],
)
def test_the_notes_say_why_there_is_no_monitor(settings: tuple[str, ...], words: str, tmp_path: Path) -> None:
    for sentence in ("monitoring.enabled is Never", "There is no Prometheus Operator in this cluster"):
        assert (sentence in notes(tmp_path, *settings)) == (sentence == words)


def notes(folder: Path, *settings: str) -> str:
    """What helm shows after an installation with these settings."""
    return notes_of(template(*settings, chart=chart_with_notes(folder)))


def test_the_notes_say_nothing_twice_and_after_an_upgrade_not_how_to_begin(tmp_path: Path) -> None:
    first, later = notes(tmp_path), notes(tmp_path, "--is-upgrade")
    for words in ("Images:", "helm test octavo", "kubectl octavo why", "no Prometheus Operator"):
        assert (first.count(words), later.count(words)) == (1, 1)
    for words in (
        "helm upgrade octavo",
        "engine.apiKeysSecret",
        "guard.enabled=true",
        "A first model",
        "helm uninstall",
    ):
        assert (first.count(words), later.count(words)) == (1, 0)


def test_helm_test_says_in_one_line_that_it_cannot_ask_the_api_server(tmp_path: Path) -> None:
    text, account = (CHART / "files" / "test.py").read_text(), "/var/run/secrets/kubernetes.io/serviceaccount"
    folder = pki.Authority(tmp_path / "account").folder
    (folder / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"https://127.0.0.1:{server.getsockname()[1]}"
    changed = text.replace('"https://kubernetes.default.svc"', f'"{closed}"').replace(account, str(folder))
    command = [sys.executable, "-c", changed, "llm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={})  # no proxy
    assert done.returncode == 1
    assert re.fullmatch(rf"cannot ask the API server at {closed}: .*refused.*; check DNS, and .*\n", done.stderr)
