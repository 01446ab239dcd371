"""Other projects' CRDs, from their Go modules, by which the objects that the operator renders are validated."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .client import Client
from .errors import ClusterError


@dataclass(frozen=True)
class Crds:
    """CRD files of a Go module; `digest` is what its go.sum would say. CRDs are named as in the cluster."""

    module: str
    version: str
    digest: str
    files: dict[str, str]

    def paths(self) -> list[Path]:
        """Return the files, fetched into Go's module cache if need be."""
        command = ["go", "mod", "download", "-json", f"{self.module}@{self.version}"]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
        found = json.loads(done.stdout)
        if found["Sum"] != self.digest:
            raise ClusterError(f"{self.module} {self.version} has digest {found['Sum']}, not {self.digest}")
        return [Path(found["Dir"]) / file for file in self.files.values()]


_MONITORING = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"
PROMETHEUS_OPERATOR = Crds(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    {
        f"{kind}.monitoring.coreos.com": _MONITORING.format(kind)
        for kind in ("servicemonitors", "podmonitors", "prometheusrules")
    },
)
KEDA = Crds(
    "github.com/kedacore/keda/v2",
    "v2.21.0",
    "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
    {"scaledobjects.keda.sh": "config/crd/bases/keda.sh_scaledobjects.yaml"},
)


@contextlib.contextmanager
def installed(cluster: Client, crds: Crds) -> Iterator[None]:
    """The CRDs, known to the API server, and removed afterwards; those that the cluster has already are left alone."""
    missing = {
        name: path for name, path in zip(crds.files, crds.paths(), strict=True) if not cluster.exists("crd", name)
    }
    try:
        for path in missing.values():
            cluster.kubectl("apply", "--server-side", "-f", str(path))
        for name in missing:
            cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=180s")
        yield
    finally:
        for name in missing:
            cluster.kubectl("delete", "crd", name, "--ignore-not-found")
