"""`make images-check`: runs the built images as pods of a real Kubernetes and gets an answer from a model.

    python -m images.check [operator] [engine]

Needs .cache/images/NAME.tar from `make images`. For a target that is not named, the checkout's code runs (`:dev`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import octavo_operator
from demo.__main__ import QUESTION, ask, summarize
from images.__main__ import ARCHIVES, TARGETS
from tests.cluster.client import Client
from tests.cluster.cluster import running_cluster
from tests.cluster.images import USER
from tests.cluster.layout import HOME
from tests.cluster.octavo import CHART, SAMPLES, sdk, wait_for_condition

NAMESPACE = "octavo-system"
MODEL = "smollm2"
INSIDE = Path(__file__).with_name("inside.py")
INSTALLED = "/opt/octavo/"
"""The folder of the image's own files; files that a pod compiles itself are in its cache instead."""


def main() -> int:
    """Return 0 if pods run the images, the chart's test passes, a model answers, and no file is missing in its pod."""
    parser = argparse.ArgumentParser(prog="python -m images.check", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    targets = parser.parse_args().targets or TARGETS
    archives = [ARCHIVES / f"{target}.tar" for target in targets]
    if missing := [str(archive) for archive in archives if not archive.exists()]:
        sys.stderr.write(f"images: {', '.join(missing)}: run `make images`\n")
        return 1
    tags = {target: octavo_operator.__version__ if target in targets else "dev" for target in TARGETS}
    with running_cluster(HOME / "images", _say, archives) as found:
        cluster = Client(found.kubeconfig, programs=HOME / "bin", scratch=HOME / "images" / "scratch")
        _install(cluster, tags)
        _serve(cluster)
        faults = [*_other_images(cluster, tags)]
        if "engine" in targets:
            faults += _faults_inside(cluster)
    for fault in faults:
        _say(fault)
    return 1 if faults else 0


def _install(cluster: Client, tags: dict[str, str]) -> None:
    wanted = [part for target, tag in tags.items() for part in ("--set", f"{target}.image.tag={tag}")]
    _show("helm", cluster, "install", "octavo", str(CHART), "--namespace", NAMESPACE, "--create-namespace",
          *wanted, "--wait", "--timeout=120s")  # fmt: skip
    _show("helm", cluster, "test", "octavo", "--namespace", NAMESPACE, "--logs")


def _serve(cluster: Client) -> None:
    """Apply the sample and wait for an answer through its Service."""
    started = time.monotonic()
    cluster.apply(SAMPLES / f"{MODEL}.yaml")
    wait_for_condition(cluster, MODEL, "Ready", "Serving", 240)
    ready_after = time.monotonic() - started
    _show("kubectl", cluster, "get", "llms,pods", "-A", "-o", "wide")
    for container in (status for pod in _engines(cluster) for status in pod["status"]["containerStatuses"]):
        _say(f"the container began at {container['state']['running']['startedAt']}")
    client = sdk(cluster, MODEL)
    for _ in range(2):  # the first answer warms up the engine for the second
        summarize(ask(client, QUESTION), str(client.base_url), ready_after)


def _other_images(cluster: Client, tags: dict[str, str]) -> Iterator[str]:
    """Yield a problem for each pod that runs another image than the one under test."""
    operators = cluster.in_namespace(NAMESPACE).list("pods", selector="app.kubernetes.io/name=octavo-operator")
    for target, pods in (("operator", operators), ("engine", _engines(cluster))):
        images = {status["image"] for pod in pods for status in pod["status"]["containerStatuses"]}
        _say(f"the {target}'s pods run {', '.join(images)}")
        if images != {f"docker.io/library/octavo-{target}:{tags[target]}"}:
            yield f"the {target}'s pods run {images}"


def _faults_inside(cluster: Client) -> Sequence[str]:
    """Return the problems that images/inside.py finds in the engine's pod."""
    pod = _engines(cluster)[0]["metadata"]["name"]
    found = json.loads(cluster.kubectl("exec", "-i", pod, "--", "python", "-", input=INSIDE.read_text()))
    _say(f"inside: {json.dumps(found)}")
    holds = {
        "user": found["user"] == USER,
        "read_only_root": found["read_only_root"],
        "cpu_kernels": found["cpu_kernels"].startswith(INSTALLED),
        "cuda": found["cuda"] is not None,
        "cubin_bytes": found["cubin_bytes"] > 1000,
        "compiler": not found["compiler"],
        "triton_driver": len(found["triton_driver"]) == 1,
    }
    return [f"in the engine's pod {name} is wrong" for name, right in holds.items() if not right]


def _engines(cluster: Client) -> list[dict[str, Any]]:
    return cluster.list("pods", selector=f"app.kubernetes.io/instance={MODEL}")


def _show(program: str, cluster: Client, *arguments: str) -> None:
    _say(f"$ {program} {' '.join(arguments)}")
    print(getattr(cluster, program)(*arguments).rstrip(), flush=True)


def _say(line: str) -> None:
    print(f"images: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
