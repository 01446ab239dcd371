"""`make images-check`: the operator's image, as it was built, is a pod of a real Kubernetes and looks after a model.

Needs .cache/images/operator.tar, which `make images` leaves. The engine is the checkout's.
"""

from __future__ import annotations

import sys

import octavo_operator
from images.__main__ import ARCHIVES
from tests.cluster.client import Client
from tests.cluster.cluster import running_cluster
from tests.cluster.layout import HOME
from tests.cluster.octavo import CHART, SAMPLES, wait_for_condition

IMAGE = f"octavo-operator:{octavo_operator.__version__}"
NAMESPACE = "octavo-system"


def main() -> int:
    """0 if the pod runs the image, the chart's test passes, and a model becomes Ready."""
    archive = ARCHIVES / "operator.tar"
    if not archive.exists():
        sys.stderr.write(f"images: {archive} is missing: run `make images`\n")
        return 1
    with running_cluster(HOME / "images", _say, [archive]) as found:
        cluster = Client(found.kubeconfig, programs=HOME / "bin", scratch=HOME / "images" / "scratch")
        _show("helm", cluster, "install", "octavo", str(CHART), "--namespace", NAMESPACE, "--create-namespace",
              "--set", f"operator.image.tag={octavo_operator.__version__}", "--set", "engine.image.tag=dev",
              "--wait", "--timeout=120s")  # fmt: skip
        _show("helm", cluster, "test", "octavo", "--namespace", NAMESPACE, "--logs")
        cluster.apply(SAMPLES / "smollm2.yaml")
        wait_for_condition(cluster, "smollm2", "Ready", "Serving", 240)
        _show("kubectl", cluster, "get", "llms,pods", "-A", "-o", "wide")
        pods = cluster.in_namespace(NAMESPACE).list("pods", selector="app.kubernetes.io/name=octavo-operator")
        images = {status["image"] for pod in pods for status in pod["status"]["containerStatuses"]}
        _say(f"the operator's pods run {', '.join(images)}")
        return 0 if images == {f"docker.io/library/{IMAGE}"} else 1


def _show(program: str, cluster: Client, *arguments: str) -> None:
    _say(f"$ {program} {' '.join(arguments)}")
    print(getattr(cluster, program)(*arguments).rstrip(), flush=True)


def _say(line: str) -> None:
    print(f"images: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
