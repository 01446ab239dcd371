"""`make chaos`: disturbs many LLMServices on a real cluster in all kinds of ways, and checks that they recover.

Two replicas of the operator run as processes of this machine, with a service account. Meanwhile children are deleted
and changed by other managers, LLMServices are changed, deleted and created again, quotas and policies refuse writes,
the operator loses its rights, replicas are killed, and so are the API server and the kubelet. In the end all obstacles
are removed, and the objects must become equal to those of an undisturbed run: of the same LLMServices, created in
another namespace afterwards. Two LLMServices have pods (with a small server in place of an engine); none of these may
end or restart. The seed determines the order of the disturbances, but not their times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import yaml

from bench.report import save
from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.resource import parse
from octavo_operator.render import RenderConfig, render
from tests.cluster.client import Client, CommandError
from tests.cluster.cluster import Cluster, running_cluster
from tests.cluster.layout import HOME
from tests.cluster.octavo import install_crd
from tests.cluster.reapplied import reapplied
from tests.cluster.test_unhappy_cluster import READY_AT_ONCE
from tests.operator.bad_llmservices import VALID, merged

IMAGE = "octavo-engine:dev"
CHILDREN = ("deployment", "service", "poddisruptionbudget", "hpa", "networkpolicy")
STEADY = ("steady-0", "steady-1")
ACCOUNT = "chaos-operator"
REFUSED = {"count/deployments.apps": "0", "services": "0", "count/horizontalpodautoscalers.autoscaling": "0"}
CONVERGED_SECONDS = 420.0
"""Seconds within which all objects must be right: a refused write is repeated after five minutes at the latest, that of
a field that another manager keeps changing after one."""


@dataclass
class Figures:
    """The disturbances of a run and their consequences; times in seconds."""

    services: int
    seconds: float
    seed: int
    happened: dict[str, int] = field(default_factory=dict)
    converged_after: float | None = None
    still_wrong: list[str] = field(default_factory=list)
    writes: int = 0
    mended: int = 0
    tracebacks: int = 0
    steady_pods_kept: bool = False


class Operators:
    """Two replicas of the operator, of which the one that holds the Lease leads."""

    def __init__(self, kubeconfig: Path, namespaces: tuple[str, ...], log: Path) -> None:
        names = [f"--namespace={name}" for name in namespaces]
        self._command = [sys.executable, "-m", "octavo_operator.cli", "run", f"--engine-image={IMAGE}",
                         "--health-port=0", "--lease=default/chaos", *names]  # fmt: skip
        self._env, self.log = {**os.environ, "KUBECONFIG": str(kubeconfig)}, log
        self.replicas = [self._started(), self._started()]

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._env, stderr=log)

    def kill(self, number: int) -> None:
        """Kill one replica, as a power failure of its node would, and start it again."""
        self.replicas[number].kill()
        self.revive()

    def revive(self) -> None:
        """Start the replicas that have ended again, as Kubernetes would."""
        for number, each in enumerate(self.replicas):
            if each.poll() is not None:
                self.replicas[number] = self._started()

    def end(self) -> None:
        for each in self.replicas:
            each.kill()
            each.wait()


class Chaos:
    """The disturbances, each a method. Obstacles are removed after some seconds, and `calm` removes all of them."""

    def __init__(self, admin: Client, cluster: Cluster, operators: Operators, names: list[str], seed: int) -> None:
        self._admin, self._cluster, self._operators = admin, cluster, operators
        self._names, self._chance = names, random.Random(seed)
        self._obstacles: list[tuple[float, Callable[[], object]]] = []

    def step(self) -> str:
        """Cause one disturbance, and return its name."""
        self._operators.revive()
        self._remove_obstacles(time.monotonic())
        what = self._chance.choices(
            [self.change, self.delete_and_make, self.delete_child, self.foreign_patch, self.write_status, self.quota,
             self.policy, self.lose_rights, self.kill_operator, self.restart_api_server, self.restart_kubelet],
            [6, 3, 6, 8, 3, 2, 2, 1, 3, 1, 1],
        )[0]  # fmt: skip
        with contextlib.suppress(CommandError, httpx2.HTTPError):  # the API server may be away
            what()
        return what.__name__

    def calm(self) -> None:
        """End all disturbances."""
        self._wait_for_api_server()
        self._remove_obstacles(float("inf"))

    def _remove_obstacles(self, moment: float) -> None:
        for until, remove in list(self._obstacles):
            if until <= moment:
                self._obstacles.remove((until, remove))
                try:
                    remove()
                except (CommandError, httpx2.HTTPError):
                    self._obstacles.append((until + 1, remove))

    def _remove_later(self, remove: Callable[[], object]) -> None:
        self._obstacles.append((time.monotonic() + self._chance.uniform(3, 12), remove))

    def change(self) -> None:
        self._admin.apply(llmservice(self._chance.choice(self._names), self._chance))

    def delete_and_make(self) -> None:
        name = self._chance.choice(self._names)
        how = self._chance.choice(["background", "foreground"])
        self._admin.kubectl("delete", "llms", name, f"--cascade={how}", "--ignore-not-found", "--wait=false")
        time.sleep(self._chance.uniform(0, 2))
        self._admin.apply(llmservice(name, self._chance))

    def delete_child(self) -> None:
        kind = self._chance.choice(CHILDREN)
        self._admin.kubectl("delete", kind, self._chance.choice(self._names), "--ignore-not-found", "--wait=false")

    def foreign_patch(self) -> None:
        """Patch a child. Its owner and its label are never both removed: it would then be unowned, and ignored."""
        kind, patch = self._chance.choice([
            ("service", {"spec": {"ports": [{"name": "http", "port": 81, "targetPort": 1}]}}),
            ("service", {"spec": {"selector": {"nobody": "has-this"}}}),
            ("service", {"metadata": {"labels": {"octavo.dev/llmservice": None}}}),
            ("deployment", {"spec": {"replicas": 7}}),
            ("deployment", {"metadata": {"ownerReferences": None}}),
            ("deployment", {"metadata": {"annotations": {"a": "b"}}}),
            ("deployment", {"spec": {"template": {"spec": {"automountServiceAccountToken": True}}}}),
            ("poddisruptionbudget", {"spec": {"maxUnavailable": 5}}),
        ])  # fmt: skip
        name = self._chance.choice(self._names)
        self._admin.kubectl("patch", kind, name, "--type=merge", "--field-manager=chaos", "-p", json.dumps(patch))

    def write_status(self) -> None:
        status = json.dumps({"status": {"readyReplicas": 9, "autoscaling": {"message": "by hand"}}})
        name = self._chance.choice(self._names)
        self._admin.kubectl("patch", "llms", name, "--subresource=status", "--type=merge", "-p", status)

    def quota(self) -> None:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "chaos"}, "spec": {"hard": REFUSED}}
        self._admin.apply(quota)
        self._remove_later(lambda: self._admin.kubectl("delete", "resourcequota", "chaos", "--ignore-not-found"))

    def policy(self) -> None:
        rules = [{"apiGroups": ["apps", "policy"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                  "resources": ["deployments", "poddisruptionbudgets"]}]  # fmt: skip
        kind, meta = "ValidatingAdmissionPolicy", {"name": "chaos"}
        where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._admin.namespace}}}
        spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": "false", "message": "chaos says no"}]}  # fmt: skip
        bound = {"policyName": "chaos", "validationActions": ["Deny"], "matchResources": where}
        version = "admissionregistration.k8s.io/v1"
        self._admin.apply(
            {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec},
            {"apiVersion": version, "kind": f"{kind}Binding", "metadata": meta, "spec": bound},
        )
        names = f"{kind.lower()}binding/chaos"
        self._remove_later(lambda: self._admin.kubectl("delete", names, "--ignore-not-found"))

    def lose_rights(self) -> None:
        self._admin.kubectl("delete", "clusterrolebinding", ACCOUNT, "--ignore-not-found")
        self._remove_later(lambda: self._admin.apply(BINDING))

    def kill_operator(self) -> None:
        self._operators.kill(self._chance.randrange(2))

    def restart_api_server(self) -> None:
        self._cluster.restart("kube-apiserver")
        self._wait_for_api_server()

    def restart_kubelet(self) -> None:
        """Restart the kubelet. Pods continue, and it reports their states when it is back."""
        self._cluster.restart("kubelet")

    def _wait_for_api_server(self) -> None:
        until = time.monotonic() + 600
        while time.monotonic() < until:
            with contextlib.suppress(httpx2.HTTPError):
                if self._admin.http.get("/readyz").is_success:
                    return
            time.sleep(0.5)
        raise TimeoutError("the API server is not ready within 600 s")


BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": ACCOUNT},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}],
}


def llmservice(name: str, chance: random.Random) -> dict[str, Any]:
    """Return an LLMService with random settings, whose pods find no node; of a steady one only the port is random."""
    service = {"service": {"port": chance.choice([80, 8080])}}
    if name in STEADY:
        return merged(READY_AT_ONCE, {"metadata": {"name": name}, "spec": service})
    spec: dict[str, Any] = {
        **service,
        "scheduling": {"nodeSelector": {"no-such": "node"}},
        "replicas": chance.randint(0, 2),
        "engine": {"maxModelLength": chance.choice([512, 1024])},
        "suspend": chance.random() < 0.2,
    }
    if chance.random() < 0.3:
        spec["networkPolicy"] = {}
    if chance.random() < 0.3:
        least = spec.pop("replicas") + 1
        spec["autoscaling"] = {"minReplicas": least, "maxReplicas": least + 2, "metricsSource": "Builtin"}
    return merged(VALID, {"metadata": {"name": name}, "spec": spec})


def wrong(client: Client) -> list[str]:
    """Return a sentence about each thing that is not yet as it should be."""
    found, expected = [], set()
    for service in client.list("llms"):
        status, metadata = service.get("status", {}), service["metadata"]
        current = status.get("observedGeneration") == metadata["generation"]
        if not current or len(status.get("conditions", ())) != len(ConditionType) or status.get("readyReplicas", 0) > 2:
            found.append(f"{metadata['name']} has the status {json.dumps(status)[:300]}")
        for manifest in render(parse(service), RenderConfig(IMAGE, operator_namespace="default")):
            expected.add((manifest["kind"], manifest["metadata"]["name"]))
            found += reapplied(client, manifest)
    return found + [f"{kind} {name} is left over" for kind, name in set(objects(client)) - expected]


def objects(client: Client) -> dict[tuple[str, str], Any]:
    """Return all children by kind and name, without fields that differ between namespaces or times."""
    return {
        (child["kind"], child["metadata"]["name"]): comparable(child, client.namespace)
        for kind in CHILDREN
        for child in client.list(kind, selector="octavo.dev/llmservice")
    }


def comparable(child: dict[str, Any], namespace: str) -> Any:
    spec = {name: value for name, value in child["spec"].items() if not name.startswith("clusterIP")}
    if child["kind"] == "Deployment":
        spec.get("template", {}).pop("creationTimestamp", None)
        if child["spec"].get("replicas"):  # the number belongs to the autoscaler if there is one
            spec.pop("replicas")
    owners = [{name: each[name] for name in ("kind", "name")} for each in child["metadata"].get("ownerReferences", ())]
    text = json.dumps({"labels": child["metadata"].get("labels"), "owners": owners, "spec": spec}, sort_keys=True)
    return text.replace(f"/{namespace}/", "/NAMESPACE/").replace(f'"{namespace}"', '"NAMESPACE"')


def kubeconfig_of_account(admin: Client, folder: Path) -> Path:
    """Create the service account, and return a kubeconfig with its token."""
    admin.kubectl("create", "serviceaccount", ACCOUNT, "-n", "default")
    admin.apply(BINDING)
    settings = yaml.safe_load(admin.kubeconfig.read_text())
    token = admin.kubectl("create", "token", ACCOUNT, "-n", "default", "--duration=24h").strip()
    for user in settings["users"]:
        user["user"] = {"token": token}
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(settings))
    return path


def steady_pods(client: Client) -> list[tuple[str, int]]:
    """Return the uid and the restarts of each pod of the steady services."""
    return sorted(
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for name in STEADY
        for pod in client.list("pods", selector=f"octavo.dev/llmservice={name}")
    )


def run(cluster: Cluster, figures: Figures, scratch: Path) -> None:
    """Run the disturbances and the undisturbed run, and record the results in `figures`."""
    admin = Client(cluster.kubeconfig, HOME / "bin", scratch)
    install_crd(admin)
    admin.kubectl("wait", "--for=condition=Established", "crd/llmservices.octavo.dev", "--timeout=180s")
    for name in ("chaos", "calm"):
        admin.kubectl("create", "namespace", name)
    stormy, calm = admin.in_namespace("chaos"), admin.in_namespace("calm")
    operators = Operators(kubeconfig_of_account(admin, scratch), ("chaos", "calm"), scratch / "operator.log")
    try:
        names, chance = [f"model-{number}" for number in range(figures.services - len(STEADY))], random.Random(0)
        stormy.apply(*(llmservice(name, chance) for name in (*names, *STEADY)))
        for name in STEADY:
            stormy.kubectl("wait", "--for=condition=Ready", f"llms/{name}", "--timeout=300s")
        before = steady_pods(stormy)
        chaos, happened = Chaos(stormy, cluster, operators, names, figures.seed), Counter[str]()
        until = time.monotonic() + figures.seconds
        while time.monotonic() < until:
            happened[chaos.step()] += 1
            time.sleep(0.3)
        chaos.calm()
        figures.happened = dict(sorted(happened.items()))
        _converge(stormy, operators, figures)
        figures.steady_pods_kept = steady_pods(stormy) == before
        _compare_with_calm(stormy, calm, figures)
    finally:
        operators.end()
        log = operators.log.read_text(errors="replace")
        figures.writes, figures.mended = log.count(": applied ") + log.count(": corrected "), log.count(": corrected ")
        figures.tracebacks = log.count("Traceback")


def _converge(client: Client, operators: Operators, figures: Figures) -> None:
    began = time.monotonic()
    while figures.still_wrong or figures.converged_after is None:
        operators.revive()
        figures.still_wrong = wrong(client)
        if not figures.still_wrong:
            figures.converged_after = round(time.monotonic() - began, 1)
        elif time.monotonic() - began > CONVERGED_SECONDS:
            return
        else:
            time.sleep(2)


def _compare_with_calm(stormy: Client, calm: Client, figures: Figures) -> None:
    """Create the same LLMServices in a namespace without disturbances, and compare the objects."""
    for service in stormy.list("llms"):
        metadata = {"name": service["metadata"]["name"]}
        calm.apply({**{name: service[name] for name in ("apiVersion", "kind", "spec")}, "metadata": metadata})
    calm.wait_until(lambda: not wrong(calm), 180, lambda: f"the undisturbed run is done: {wrong(calm)[:3]}", every=2)
    began = time.monotonic()
    while differing := _differing(stormy, calm):  # a field that was changed often is restored after a minute
        if time.monotonic() - began > CONVERGED_SECONDS:
            break
        time.sleep(2)
    figures.still_wrong += differing
    figures.converged_after = round((figures.converged_after or 0) + time.monotonic() - began, 1)


def _differing(stormy: Client, calm: Client) -> list[str]:
    one, other = objects(stormy), objects(calm)
    names = sorted({*one, *other})
    return [f"{kind} {name} differs" for kind, name in names if one.get((kind, name)) != other.get((kind, name))]


def page(title: str, figures: Figures) -> str:
    rows = "".join(f"| {name} | {count} |\n" for name, count in figures.happened.items())
    ended = "never" if figures.converged_after is None else f"{figures.converged_after} s"
    wrong_ = "; ".join(figures.still_wrong[:20]) or "nothing"
    kept = "yes" if figures.steady_pods_kept else "no"
    return (
        f"# {title}\n\n{figures.services} LLMServices for {figures.seconds:.0f} s, seed {figures.seed} "
        "(`python -m bench.chaos`, two cores shared with others).\n\n"
        f"| what happened | times |\n| --- | --- |\n{rows}\n"
        f"| result | |\n| --- | --- |\n| as rendered, after the last disturbance | {ended} |\n"
        f"| differs from an undisturbed run | {wrong_} |\n| pods that serve were all kept | {kept} |\n"
        f"| children written, of these mended | {figures.writes}, {figures.mended} |\n"
        f"| unexpected errors (tracebacks) of the operator | {figures.tracebacks} |\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--services", type=int, default=30, help="LLMServices (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="minutes of disturbances (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the disturbances (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the cluster (default: %(default)s)")
    options = parser.parse_args()
    figures = Figures(options.services, options.minutes * 60, options.seed)

    def report(line: str) -> None:
        print(f"chaos: {line}", file=sys.stderr, flush=True)

    with running_cluster(options.home.resolve(), report) as cluster:
        scratch = options.home / "chaos"
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / "operator.log").unlink(missing_ok=True)
        run(cluster, figures, scratch)
    save("chaos", asdict(figures), lambda title: page(title, figures))
    return 0 if not figures.still_wrong and figures.steady_pods_kept else 1


if __name__ == "__main__":
    sys.exit(main())
