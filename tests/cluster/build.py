"""Builds the programs of a Kubernetes with Go, from the versions that `binaries/go.mod` pins.

That is one module for nearly all programs, so that each package they share is compiled once. They are kept in the
user's cache under their version and the digest of their module files, so that all checkouts share them, and a changed
pin is built again. A build appears in the cache only when it is complete.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import ClusterError
from .heartbeat import lines_with_heartbeat
from .layout import HOME, user_cache
from .report import Report, elapsed

SOURCES = Path(__file__).parent / "binaries"
QUICKER = ("-trimpath", "-gcflags=all=-dwarf=false")
"""These programs are not debugged, and the linker leaves out (-w) what the compiler would write for debuggers."""
RARE_COLLECTION = {"GOGC": "off", "GOMEMLIMIT": "2GiB"}
"""The compiler collects garbage only where memory gets large, which takes a seventh less CPU time than GOGC=400."""


@dataclass(frozen=True)
class Component:
    """Programs that are built together; each has a `tool` line in the `go.mod` of `source`."""

    name: str
    module: str  # the required module whose version names the build
    programs: tuple[str, ...]
    source: str = "."  # the folder of the Go module, below `binaries/`
    linker_flags: str = ""  # {version}: of `module`; {minor}: the Kubernetes minor version it is built against
    renamed: tuple[tuple[str, str], ...] = ()  # (as Go names it, as everyone names it)
    tags: str = ""  # the argument of `go build -tags`

    @property
    def version(self) -> str:
        return self._required(self.module)

    @property
    def flags(self) -> str:
        """The argument of `go build -ldflags`."""
        minor = self._required("k8s.io/client-go").split(".")[1] if "{minor}" in self.linker_flags else ""
        return f"-s -w {self.linker_flags.format(version=self.version, minor=minor)}".strip()

    @property
    def folder(self) -> Path:
        """The folder of the built programs, named by all they are built from: our own code is in the folder `name`."""
        content = "\n".join((self._source("go.mod"), self._source("go.sum"), self.flags, repr(self.renamed)))
        content += self.tags + "".join(map(Path.read_text, sorted((self.source_folder / self.name).glob("*.go"))))
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return user_cache() / "bin" / f"{self.name}-{self.version}-{digest}"

    @property
    def source_folder(self) -> Path:
        return SOURCES / self.source

    @property
    def packages(self) -> list[str]:
        """The Go packages of the programs."""
        return [self._package(program) for program in self.programs]

    def _package(self, program: str) -> str:
        name = next((old for old, new in self.renamed if new == program), program)
        found = re.search(rf"^(?:tool)?[ \t]+(\S+/{name}(?:/v\d+)?)$", self._source("go.mod"), re.MULTILINE)
        if not found:
            raise ClusterError(f"{self.source_folder / 'go.mod'} has no `tool` line for {program}")
        return found[1]

    def _required(self, module: str) -> str:
        found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", self._source("go.mod"), re.MULTILINE)
        if not found:
            raise ClusterError(f"{self.source_folder / 'go.mod'} does not require {module}")
        return found[1]

    def _source(self, file: str) -> str:
        return (self.source_folder / file).read_text()


KUBERNETES = Component(
    name="kubernetes",
    module="k8s.io/kubernetes",
    programs=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    linker_flags=" ".join(
        f"-X k8s.io/component-base/version.{name}"
        for name in ("gitVersion={version}", "gitMajor=1", "gitMinor={minor}", "gitTreeState=clean")
    ),
)
ETCD = Component(name="etcd", module="go.etcd.io/etcd/server/v3", programs=("etcd",), renamed=(("server", "etcd"),))
CONTAINERD = Component(
    name="containerd",
    module="github.com/containerd/containerd/v2",
    programs=("containerd", "containerd-shim-runc-v2", "ctr"),
    linker_flags="-X github.com/containerd/containerd/v2/version.Version={version}",
)
CNI = Component(name="cni", module="github.com/containernetworking/plugins", programs=("ptp", "loopback", "host-local"))
COREDNS = Component(name="coredns", module="github.com/coredns/coredns", programs=("coredns",))
HELM = Component(
    name="helm",
    module="helm.sh/helm/v3",
    programs=("helm",),
    linker_flags=" ".join(  # without them `helm template` takes the cluster for a 1.20
        f"-X helm.sh/helm/v3/{name}"
        for name in (
            "internal/version.version={version}",
            "pkg/chartutil.k8sVersionMajor=1",
            "pkg/chartutil.k8sVersionMinor={minor}",
        )
    ),
)
VERSITYGW = Component(name="versitygw", module="github.com/versity/versitygw", programs=("versitygw",))
"""An S3 server on plain files; no part of a cluster, so only tests of S3 build it."""
PROMETHEUS_OPERATOR = Component(
    name="prometheus-operator",
    module="github.com/prometheus-operator/prometheus-operator",
    source="prometheus-operator",
    programs=("operator", "prometheus-config-reloader"),
)
PROMETHEUS = Component(
    name="prometheus",
    module="github.com/prometheus/prometheus",
    source="prometheus",
    programs=("prometheus",),
    tags="remove_all_sd,enable_kubernetes_sd",  # of its ways to find targets the one that is used
)
"""Only `make monitoring-check` builds these two; what else needs a Prometheus runs Debian's."""
COMPONENTS = (KUBERNETES, ETCD, CONTAINERD, CNI, COREDNS, HELM)

NEWEST = "1.36"
"""The minor version of Kubernetes that `KUBERNETES` is, and that runs where none is asked for."""
MINORS = ("1.31", "1.34", NEWEST)
"""The minor versions that can be built; an older one has the source `binaries/kubernetes-MINOR`."""


def kubernetes(minor: str) -> Component:
    """The programs of a minor version of Kubernetes, of `MINORS`."""
    return KUBERNETES if minor == NEWEST else replace(KUBERNETES, source=f"kubernetes-{minor}")


def components(minor: str) -> tuple[Component, ...]:
    """The programs of a cluster with this minor version of Kubernetes; all but Kubernetes are the same for each."""
    return (kubernetes(minor), *COMPONENTS[1:])


def programs_folder(minor: str) -> Path:
    """The folder of the checkout with links to the programs of a cluster with this minor version of Kubernetes."""
    return HOME / ("bin" if minor == NEWEST else f"bin-{minor}")


def ensure_built(report: Report, components: tuple[Component, ...] = COMPONENTS) -> None:
    """Build the components that the cache lacks, one after the other, with progress."""
    missing = [component for component in components if not component.folder.is_dir()]
    if not missing:
        return
    if not shutil.which("go"):
        names = ", ".join(component.name for component in missing)
        raise ClusterError(f"Go 1.26 or newer is needed to build {names}: install it and put `go` on PATH", exit_code=2)
    report(
        f"building {', '.join(f'{c.name} {c.version}' for c in missing)} with Go; this is done once, takes about "
        f"{round(6 * len(missing) / len(COMPONENTS)) or 1} min on two cores, and is kept in {user_cache() / 'bin'}"
    )
    for number, component in enumerate(missing, start=1):
        _build(component, report, f"[{number}/{len(missing)}] {component.name} {component.version}")


def program(name: str, components: tuple[Component, ...] = COMPONENTS) -> Path:
    """The path of a built program."""
    return next(component.folder / name for component in components if name in component.programs)


def link_programs(folder: Path, components: tuple[Component, ...] = COMPONENTS) -> None:
    """Fill `folder` with links to the built programs, for the host's own shell (`kubectl`, `helm` …)."""
    folder.mkdir(parents=True, exist_ok=True)
    for component in components:
        if component is CNI:  # plugins that only containerd calls
            continue
        for name in component.programs:
            new = folder / f".{name}.{os.getpid()}"
            new.symlink_to(component.folder / name)
            new.replace(folder / name)


def _build(component: Component, report: Report, title: str) -> None:
    target = component.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.parent / f".{component.name}.lock", report, title):
        if target.is_dir():  # someone else has built it meanwhile
            return
        for abandoned in target.parent.glob(f".{component.name}.build-*"):
            shutil.rmtree(abandoned)
        output = Path(tempfile.mkdtemp(prefix=f".{component.name}.build-", dir=target.parent))
        try:
            start = time.monotonic()
            _go_build(component, output, report, title)
            for old, new in component.renamed:
                (output / old).rename(output / new)
            output.chmod(0o755)
            output.rename(target)
            report(f"{title}: built in {elapsed(start)}")
        finally:
            shutil.rmtree(output, ignore_errors=True)


def _go_build(component: Component, output: Path, report: Report, title: str) -> None:
    """Run `go build`, telling how far it is; it ends with this process, however that ends."""
    flags = (*QUICKER, f"-ldflags={component.flags}", f"-tags={component.tags}")
    command = ["go", "build", "-v", *flags, "-o", f"{output}/", *component.packages]
    start, packages, last_words = time.monotonic(), 0, deque[str](maxlen=15)
    with subprocess.Popen(
        # Tests that run meanwhile come first: they have time limits.
        ["setpriv", "--pdeathsig", "INT", "nice", "-n", "5", *command],
        cwd=component.source_folder,
        env=os.environ | RARE_COLLECTION | {"CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in lines_with_heartbeat(process):
                if line is None:
                    last = f", last {last_words[-1]}" if last_words else ""
                    report(f"{title}: {elapsed(start)}, {packages} packages compiled{last}")
                    continue
                last_words.append(line)
                packages += not line.startswith("go: ")
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            raise
    if process.returncode:
        raise ClusterError(f"{title}: go build failed with code {process.returncode}:\n" + "\n".join(last_words))


@contextlib.contextmanager
def _lock(path: Path, report: Report, title: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"{title}: another process builds it, waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
