"""The properties of the cluster on which the other tests rely."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .client import Client, CommandError
from .images import PROGRAMS, USER, mounted_folders
from .layout import CHECKOUT
from .octavo import ONLY_ON_OURS

pytestmark = ONLY_ON_OURS

PYTHON = f"{CHECKOUT}/.venv/bin/python"
WEB = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {{runAsNonRoot: true, runAsUser: {USER}, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
      - name: web
        image: octavo-operator:dev
        command:
        - {PYTHON}
        - -c
        - |
          import http.server, socket
          class Name(http.server.BaseHTTPRequestHandler):
              def do_GET(self):
                  body = socket.gethostname().encode()
                  self.send_response(200)
                  self.send_header("Content-Length", str(len(body)))
                  self.end_headers()
                  self.wfile.write(body)
          http.server.ThreadingHTTPServer(("", 8080), Name).serve_forever()
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1, failureThreshold: 60}}
        resources: {{limits: {{nvidia.com/gpu: 4, memory: 128Mi}}}}
        securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: http}}]}}
"""

FETCH = """
import sys, time, urllib.request

def ask():
    return urllib.request.urlopen(sys.argv[1], timeout=10).read().decode()

# Pods are ready before kube-proxy sends requests to them: wait until each has answered once.
missing, deadline = set(sys.argv[2:]), time.monotonic() + 60
while missing and time.monotonic() < deadline:
    try:
        missing.discard(ask())
    except OSError:
        time.sleep(0.1)
for _ in range(30):
    print(ask())
"""
"""Prints which pod answered each of 30 requests to the URL argv[1]; the pods in argv[2:] are those of its Service."""


def test_the_node_is_ready_with_eight_gpus(cluster: Client) -> None:
    (node,) = cluster.list("nodes")
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")


def test_a_service_answers_by_name_and_through_the_api_server(namespace: Client) -> None:
    namespace.apply(WEB)
    namespace.kubectl("rollout", "status", "deployment/web", "--timeout=180s")
    pods = {pod["metadata"]["name"] for pod in namespace.list("pods", selector="app=web")}
    assert len(pods) == 2

    for host in ("web", f"web.{namespace.namespace}.svc.cluster.local"):
        finished = namespace.run_pod("octavo-engine:dev", [PYTHON, "-c", FETCH, f"http://{host}/", *pods], timeout=120)
        assert (finished.exit_code, set(finished.logs.split())) == (0, pods), finished.logs

    url = f"{namespace.service_proxy_url('web', 'http')}/"
    seen: set[str] = set()

    def both_answered() -> bool:
        seen.add(namespace.http.get(url).text)
        return seen >= pods

    namespace.wait_until(both_answered, 60, lambda: f"both pods answer: {seen}")
    assert {namespace.http.get(url).text for _ in range(30)} == pods


def test_gpus_are_counted(namespace: Client) -> None:
    for name, gpus in (("six", 6), ("three", 3)):
        container = {"name": "c", "image": "octavo-engine:dev", "command": ["/usr/bin/sleep", "600"]}
        container |= {"resources": {"limits": {"nvidia.com/gpu": gpus}}}  # type: ignore[dict-item]
        namespace.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
        )
        if name == "six":
            namespace.kubectl("wait", "--for=condition=Ready", "pod/six", "--timeout=180s")
    message = namespace.wait_until(lambda: _unschedulable(namespace, "three"), 30, "three more GPUs are refused")
    assert "Insufficient nvidia.com/gpu" in message


def test_the_checkout_runs_as_a_restricted_user(namespace: Client) -> None:
    code = """
import errno, json, os, pathlib, torch
import octavo_engine
def write(path):
    try:
        pathlib.Path(path).write_text("x")
    except OSError as error:
        return errno.errorcode[error.errno]
    return "written"
checkout = pathlib.Path(octavo_engine.__path__[0]).parents[1]
print(json.dumps({
    "user": os.getuid(), "sum": torch.ones(3).sum().item(), "checkout": str(checkout),
    "root": write("/home/octavo/x"), "code": write(checkout / "x"), "tmp": write("/tmp/x"),
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
}))
"""
    finished = namespace.run_pod("octavo-engine:dev", ["python", "-c", code], timeout=120)
    assert finished.exit_code == 0, finished.logs
    assert json.loads(finished.logs) == {
        "user": USER,
        "sum": 3.0,
        "checkout": str(CHECKOUT),
        "root": "EROFS",
        "code": "EROFS",
        "tmp": "written",
        "capabilities": ["0000000000000000"],
    }


def test_an_image_answers_to_its_usual_names(namespace: Client) -> None:
    for image in ("octavo-operator:dev", "localhost/octavo-operator:dev", "docker.io/library/octavo-operator:dev"):
        assert namespace.run_pod(image, ["python", "-c", "print('here')"]).logs == "here\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_starts_as_its_image_says(namespace: Client, program: str) -> None:
    assert namespace.run_pod(f"{program}:dev", args=["--help"]).logs.startswith(f"usage: {program}")


def test_containers_that_run_first_get_the_checkout_and_others_get_nothing(namespace: Client) -> None:
    first = {"name": "first", "image": "octavo-operator:dev", "command": ["python", "-c", "import octavo_operator"]}
    finished = namespace.run_pod("octavo-engine:dev", ["python", "-c", "print('after')"], initContainers=[first])
    assert (finished.exit_code, finished.logs) == (0, "after\n")

    folders = [str(folder) for folder in mounted_folders()]
    others = namespace.run_pod("localhost/octavo-pause:dev", ["/busybox", "ls", "-d", "/dev", *folders])
    assert sorted(others.logs.splitlines()) == sorted(
        ["/dev", *(f"ls: {each}: No such file or directory" for each in folders)]
    )


def test_no_name_outside_the_cluster_is_known(namespace: Client) -> None:
    code = "import socket\ntry: socket.getaddrinfo('example.com', 80)\nexcept socket.gaierror: print('unknown')"
    assert namespace.run_pod("octavo-engine:dev", ["python", "-c", code]).logs == "unknown\n"


def test_helm_installs_and_removes_a_chart(namespace: Client, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: small, version: 0.1.0, kubeVersion: '>=1.34.0-0'}")
    template = "{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}'}, data: {a: b}}"
    (tmp_path / "templates" / "map.yaml").write_text(template)
    namespace.helm("install", "one", str(tmp_path))
    assert namespace.get("configmap", "one")["data"] == {"a": "b"}
    assert "kind: ConfigMap" in namespace.helm("template", "one", str(tmp_path))
    namespace.helm("uninstall", "one")
    assert not namespace.exists("configmap", "one")


def test_a_refusal_of_the_api_server_is_an_error_with_its_words(namespace: Client) -> None:
    with pytest.raises(CommandError, match="Required value"):
        namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}})


def test_a_pod_over_its_memory_limit_is_killed(namespace: Client) -> None:
    container = {
        "name": "c",
        "image": "octavo-engine:dev",
        "command": ["python", "-c", "x = bytearray(256 << 20)"],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    pod = {"restartPolicy": "Never", "containers": [container]}
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big"}, "spec": pod})
    namespace.wait_until(lambda: _reason(namespace, "big") == "OOMKilled", 60, "the pod is killed")


def test_the_links_in_the_checkout_work_from_the_hosts_shell(cluster: Client) -> None:
    said = subprocess.run(
        [cluster.programs / "kubectl", "version", "-o", "json"],
        env={"KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": str(cluster.scratch)},
        capture_output=True,
        check=True,
    )
    versions = json.loads(said.stdout)
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]


def _unschedulable(client: Client, pod: str) -> str | None:
    conditions: list[dict[str, Any]] = client.get("pod", pod)["status"].get("conditions", [])
    return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), None)


def _reason(client: Client, pod: str) -> str | None:
    statuses = client.get("pod", pod)["status"].get("containerStatuses", [{}])
    reason: str | None = statuses[0].get("state", {}).get("terminated", {}).get("reason")
    return reason
