"""The chart's golden files: how each value changes what helm renders, as a diff against the defaults.

`python -m tests.operator.chart_golden` writes them anew.
"""

from __future__ import annotations

import difflib
import functools
import json
import subprocess
from pathlib import Path
from typing import Any

from docs.chart import CHART
from tests.cluster.build import HELM, program

GOLDEN = Path(__file__).parent / "chart_golden_files"
SETTINGS: dict[str, Any] = {
    "global.imageRegistry": "registry.example/octavo",
    "global.imagePullSecrets": [{"name": "registry"}],
    "nameOverride": "llm",
    "fullnameOverride": "llm-operator",
    "commonLabels": {"team": "ml", "app.kubernetes.io/name": "not-theirs"},
    "openshift": "Always",
    "operator.replicas": 1,
    "operator.image.repository": "mine/operator",
    "operator.image.tag": "1.2.3",
    "operator.image.digest": "sha256:" + 64 * "0",
    "operator.image.pullPolicy": "Always",
    "operator.logLevel": "debug",
    "operator.resources": {"limits": {"memory": "1Gi"}},
    "operator.serviceAccount.create": False,
    "operator.serviceAccount.name": "mine",
    "operator.serviceAccount.annotations": {"example.com/role": "octavo"},
    "operator.endpointSliceManagers": ["mesh.example.com"],
    "operator.nodeWaitSeconds": 900,
    "operator.extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example"}],
    "operator.extraArgs": ["--health-port=8081"],
    "operator.nodeSelector": {"pool": "system"},
    "operator.tolerations": [{"key": "system", "operator": "Exists"}],
    "operator.affinity": {"nodeAffinity": {}},
    "operator.topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "operator.priorityClassName": "system-cluster-critical",
    "operator.podLabels": {"team": "ml"},
    "operator.podAnnotations": {"note": "true"},
    "operator.podSecurityContext": {"runAsUser": None, "fsGroup": 3000},
    "operator.securityContext": {"readOnlyRootFilesystem": False},
    "engine.image.repository": "mine/engine",
    "engine.image.tag": "1.2.3",
    "engine.image.digest": "sha256:" + 64 * "1",
    "engine.hostPaths": ["/mnt/models"],
    "engine.tolerations": [{"key": "gpu", "operator": "Exists"}],
    "engine.runtimeClassName": "nvidia",
    "engine.imagePullSecrets": [{"name": "registry"}],
    "engine.apiKeysSecret": "api-keys",
    "engine.networkPolicy.enabled": True,
    "engine.networkPolicy.from": [{"namespaceSelector": {"matchLabels": {"team": "apps"}}}],
    "guard.enabled": True,
    "metricsApi.enabled": "Never",
    "metricsApi.replicas": 1,
    "metricsApi.apiService": "Always",
    "metricsApi.hostNetwork": True,
    "metricsApi.tlsPort": 9443,
    "metricsApi.port": 9080,
    "metricsApi.resources": {"limits": {"memory": "1Gi"}},
    "autoscaling.direct": True,
    "crd.install": True,
    "rbac.aggregate": False,
    "networkPolicy.enabled": True,
    "networkPolicy.apiServerPorts": [16443],
    "monitoring.enabled": "Always",
    "monitoring.kind": "PodMonitor",
    "monitoring.interval": "30s",
    "monitoring.labels": {"release": "prometheus"},
    "monitoring.alerts": False,
    "dashboards.enabled": "Always",
    "dashboards.labels": {"found_by": "sidecar"},
    "dashboards.annotations": {"grafana_folder": "Octavo"},
    "namespaces": ["team-a", "team-b"],
    "createNamespace": True,
}
"""One other setting for each value."""
_WITH = {"networkPolicy.apiServerPorts": "networkPolicy.enabled=true", "dashboards.labels": "dashboards.enabled=Always"}
_WITH |= dict.fromkeys(("monitoring.kind", "monitoring.interval", "monitoring.labels", "monitoring.alerts"),
                       "monitoring.enabled=Always")  # fmt: skip
_WITH["engine.networkPolicy.from"] = "engine.networkPolicy.enabled=true"
_WITH["dashboards.annotations"] = _WITH["dashboards.labels"]
"""What has to be on for a value to matter."""
_SHORT = ("dashboards.enabled", "crd.install")
"""Their diffs are long files that are in the checkout anyway: only the names of the objects are kept."""


@functools.cache
def rendered(*settings: str) -> list[str]:
    """The lines that helm renders without the CRD."""
    command = [str(program("helm", (HELM,))), "template", "octavo", str(CHART), "--kube-version", "1.36.0"]
    command += ["--namespace", "llm", "--skip-tests", "--set", "crd.install=false", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def change(value: str) -> str:
    """Return the changes by the setting of `value`, as a diff without context."""
    needed = ("--set", _WITH[value]) if value in _WITH else ()
    before, after = rendered(*needed), rendered(*needed, "--set-json", f"{value}={json.dumps(SETTINGS[value])}")
    if value in _SHORT:
        before, after = ([line for line in lines if line.startswith(("kind:", "  name:"))] for lines in (before, after))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    shown = ("@@" if line.startswith("@@") else line for line in lines)  # numbers of lines change with any template
    return "\n".join([f"{value}={json.dumps(SETTINGS[value])}", *shown]) + "\n"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in SETTINGS:
        (GOLDEN / f"{each}.diff").write_text(change(each))
    print(f"wrote {len(SETTINGS)} files")
