"""Starts a cluster, step by step, and ends it."""

import contextlib
import fcntl
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from . import build, images
from .api import connect
from .errors import ClusterError
from .layout import (
    API_PORT,
    CONTAINERD_SOCKET,
    DNS_IP,
    DNS_READY_PORT,
    INSIDE,
    KUBERNETES_IP,
    NODE,
    NODE_IP,
    PROXY_HEALTH_PORT,
)
from .packages import ensure_packages
from .pki import Authority, write_kubeconfig
from .processes import Processes
from .programs import RUNTIME, files
from .report import Report, elapsed
from .sandbox import Sandbox
from .state import control_group, leftovers
from .waiting import wait_until

GPUS = 8
STEP_TIMEOUT = 240.0
"""Seconds for any one step; on a quiet machine each takes a few."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    kubeconfig: Path
    logs: Path
    check: Callable[[], None]
    """Raises `ClusterError` if one of its programs has ended."""
    restart: Callable[[str], None]
    """Kills the program of this name and starts it again."""


@contextlib.contextmanager
def running_cluster(
    home: Path, report: Report, archives: Sequence[Path] = (), minor: str = build.NEWEST
) -> Iterator[Cluster]:
    """Start a cluster and end it without a trace but `home`/logs. `home`/kubeconfig exists as long as it is ready.

    Raises `ClusterError` when the machine lacks something, a program dies, a step takes too long, or another cluster
    uses the same `home`. `archives` are images as `docker save` writes them, for pods to use. `minor` is a version of
    Kubernetes in `build.MINORS`.
    """
    prepare(report, minor)
    with ExitStack() as stack:
        stack.enter_context(_sole_use(home))
        started = time.monotonic()
        logs = _fresh_folder(home / "logs")
        processes = _start(stack, home, logs, report, archives, minor)
        report(f"cluster ready after {elapsed(started)}, Kubernetes {build.kubernetes(minor).version}")
        yield Cluster(home / "kubeconfig", logs, processes.check, processes.restart)


def prepare(report: Report, minor: str = build.NEWEST) -> None:
    """Everything that is done once a machine: packages, programs, links to them in the checkout."""
    images.check_readable()
    ensure_packages(report)
    build.ensure_built(report, build.components(minor))
    build.link_programs(build.programs_folder(minor), build.components(minor))


def _start(stack: ExitStack, home: Path, logs: Path, report: Report, archives: Sequence[Path], minor: str) -> Processes:
    sandbox = Sandbox(logs / "sandbox.log")
    stack.callback(_end, sandbox, report)
    processes = Processes(sandbox, logs, build.components(minor))
    _write_files(sandbox.folder)
    port = _forward_port(processes)
    processes.start("etcd", "kube-apiserver", "containerd")
    pki = sandbox.folder / "pki"
    server = f"https://127.0.0.1:{port}"
    api = connect(server, ca=pki / "ca.crt", certificate=pki / "admin.crt", key=pki / "admin.key")
    stack.enter_context(api)
    steps = Steps(processes, api, report)

    _import_images(sandbox, steps, archives)
    steps.wait("the API server answers", lambda: steps.answers("/readyz"))
    processes.start("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")
    for path, manifest in _manifests():
        steps.create(path, manifest)
    steps.wait("the node registers", lambda: steps.get(f"/api/v1/nodes/{NODE}"))
    steps.pretend_gpus()
    steps.wait(f"the node is ready, and counts {GPUS} GPUs (pretended; programs find none)", steps.node_ready)
    steps.wait("services are routed", lambda: steps.answers(f"/api/v1/nodes/{NODE}:{PROXY_HEALTH_PORT}/proxy/healthz"))
    steps.wait("names are resolved", lambda: steps.answers(f"/api/v1/nodes/{NODE}:{DNS_READY_PORT}/proxy/ready"))
    steps.wait("pods can be created", lambda: steps.get("/api/v1/namespaces/default/serviceaccounts/default"))
    write_kubeconfig(home / "kubeconfig", server=server, pki=pki)
    stack.callback((home / "kubeconfig").unlink, missing_ok=True)
    return processes


def _end(sandbox: Sandbox, report: Report) -> None:
    sandbox.close()
    for path in leftovers(sandbox.folder):
        report(f"could not remove {path}")


@dataclass(frozen=True)
class Steps:
    """The questions to the API server while the cluster starts."""

    processes: Processes
    api: httpx2.Client
    report: Report

    def wait(self, step: str, done: Callable[[], Any]) -> None:
        """Wait for a step, saying so when it takes long; a program that dies meanwhile ends the wait."""

        def check() -> Any:
            self.processes.check()
            return done()

        try:
            wait_until(check, timeout=STEP_TIMEOUT, describe=step, every=0.05)
        except TimeoutError as error:
            raise ClusterError(f"the cluster does not come up: {error}; see {self.processes.logs}") from None
        self.report(f"  {step}")

    def answers(self, path: str) -> bool:
        """Return True if GET `path` succeeds."""
        try:
            return self.api.get(path).is_success
        except httpx2.TransportError:  # not listening yet
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        response = self.api.get(path)
        if response.status_code == httpx2.codes.NOT_FOUND:
            return None
        return dict(response.raise_for_status().json())

    def create(self, path: str, manifest: dict[str, Any]) -> None:
        response = self.api.post(path, json=manifest)
        if response.is_error:
            raise ClusterError(f"POST {path}: {response.text}")

    def pretend_gpus(self) -> None:
        """The one fake: capacity that no device stands behind. The scheduler counts it; a container sees no GPU."""
        patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
        headers = {"Content-Type": "application/json-patch+json"}
        self.api.patch(f"/api/v1/nodes/{NODE}/status", json=patch, headers=headers).raise_for_status()

    def node_ready(self) -> bool:
        status = (self.get(f"/api/v1/nodes/{NODE}") or {})["status"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
        return ready and status.get("allocatable", {}).get("nvidia.com/gpu") == str(GPUS)


@contextlib.contextmanager
def _sole_use(home: Path) -> Iterator[None]:
    """Hold `home` for this process, so that two clusters never write one kubeconfig."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ClusterError(
                f"a cluster of this checkout is up, or on its way (process {lock.read() or '?'}): "
                f"use it with KUBECONFIG={home / 'kubeconfig'}, or end it with Ctrl-C there"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _fresh_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _write_files(folder: Path) -> None:
    """Keys, certificates and the configuration of every program, into the state folder."""
    authority = Authority(folder / "pki")
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    authority.issue("apiserver", "kube-apiserver", hosts=("127.0.0.1", NODE_IP, KUBERNETES_IP, *names))
    authority.issue("admin", "admin", group="system:masters")
    authority.issue("front-proxy", "front-proxy")
    authority.key_pair("service-accounts")
    write_kubeconfig(folder / "kubeconfig", server=f"https://127.0.0.1:{API_PORT}", pki=folder / "pki")
    for name, content in (files(control_group(folder)) | images.runtime_files()).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    (folder / RUNTIME.name).chmod(0o755)


def _forward_port(processes: Processes) -> int:
    """Open a port on the host's loopback, answered by the API server inside."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = Path(__file__).with_name("forward.py")
        descriptor = listener.fileno()
        command = [sys.executable, "-I", str(script), str(descriptor), str(API_PORT)]
        processes.start_command("forward", command, pass_fds=(descriptor,))
        return int(listener.getsockname()[1])


def _import_images(sandbox: Sandbox, steps: Steps, archives: Sequence[Path]) -> None:
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    ctr = [str(build.program("ctr")), "--address", str(CONTAINERD_SOCKET)]
    steps.wait("containerd answers", lambda: sandbox.run([*ctr, "version"]).returncode == 0)
    for image in (images.pause_image(busybox), *(images.development_image(name) for name in images.PROGRAMS)):
        archive = sandbox.folder / "image.tar"
        archive.write_bytes(image.archive())
        _import_image(sandbox, ctr, INSIDE / archive.name)
    for archive in archives:
        _import_image(sandbox, ctr, archive.resolve())
        steps.report(f"  {archive} is imported")


def _import_image(sandbox: Sandbox, ctr: Sequence[str], archive: Path) -> None:
    done = sandbox.run([*ctr, "--namespace", "k8s.io", "images", "import", str(archive)])
    if done.returncode:
        raise ClusterError(f"containerd refuses the image {archive}:\n{done.stderr.strip()}")


def _manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a cluster's first objects and the paths to post them to: DNS as a service."""
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    name = {"name": "kube-dns", "namespace": "kube-system"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": name, "spec": {"clusterIP": DNS_IP, "ports": ports}}
    yield "/api/v1/namespaces/kube-system/services", service
    yield (
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": name | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [NODE_IP]}],
            "ports": ports,
        },
    )
