"""A test's access to a cluster: kubectl, helm, and HTTP through the API server."""

import functools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import yaml

from .api import connect_with
from .images import USER
from .kinds import Kind, served_kinds
from .waiting import wait_until

Manifest = Mapping[str, Any] | str | Path
"""An object, YAML text (one or more documents), or a file of it."""
Value = TypeVar("Value")

PATIENCE = 240.0
"""Seconds that every wait has at least: the machine may be busy, and a longer limit costs nothing where all is well."""

_CONNECTIONS = 6
"""How often kubectl and helm may connect: each gives an API server that stands still ten seconds, and has asked nothing
then."""

RESTRICTED_POD: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED_CONTAINER: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""The security context that Octavo's own pods have."""


class CommandError(RuntimeError):
    """kubectl or helm ended with another code than 0, or the API server refused; the message is what they said."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{' '.join(command)} ended with code {code}:\n{output.strip()}")
        self.code = code
        self.output = output


@dataclass(frozen=True)
class FinishedPod:
    """The end of a pod of `Client.run_pod`."""

    exit_code: int
    logs: str


@dataclass(frozen=True)
class Client:
    """Works with one cluster, in one namespace. Commands and requests that fail raise `CommandError`.

    What tests ask for again and again, `get`, `list` and `exists`, goes without kubectl: a process each time would take
    a core from the pods that are waited for.

    `scratch` is a folder for the caches of kubectl and helm, so that the user's own are left alone.
    """

    kubeconfig: Path
    programs: Path
    scratch: Path
    namespace: str = "default"

    def in_namespace(self, namespace: str) -> "Client":
        """Return a client whose kubeconfig, a copy, has another default namespace.

        Manifests may still name their own.
        """
        settings = yaml.safe_load(self.kubeconfig.read_text())
        (current,) = [each for each in settings["contexts"] if each["name"] == settings["current-context"]]
        current["context"]["namespace"] = namespace
        copy = self.scratch / f"{namespace}.kubeconfig"
        self.scratch.mkdir(parents=True, exist_ok=True)
        copy.touch(mode=0o600)
        copy.write_text(yaml.safe_dump(settings))
        client = replace(self, namespace=namespace, kubeconfig=copy)
        client.__dict__.update(http=self.http, _kinds=self._kinds)  # the same API server and credentials
        return client

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 300) -> str:  # noqa: A002
        """Run kubectl in this namespace and return its stdout."""
        return self._run("kubectl", *arguments, stdin=input, timeout=timeout)

    def helm(self, *arguments: str, input: str | None = None, timeout: float = 300) -> str:  # noqa: A002
        """Run helm in this namespace and return its stdout."""
        return self._run("helm", *arguments, stdin=input, timeout=timeout)

    def apply(self, *manifests: Manifest) -> str:
        """Apply the manifests by `kubectl apply`; return what kubectl says of each."""
        return self.kubectl("apply", "-f", "-", input=as_yaml(*manifests))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object, as `kubectl get -o json` shows it."""
        found = self.find(kind, name)
        if found is None:
            raise CommandError(["GET", self.path(kind, name)], httpx2.codes.NOT_FOUND, "there is none")
        return found

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the object, or None where there is none."""
        response = self.http.get(self.path(kind, name))
        if response.status_code == httpx2.codes.NOT_FOUND:
            return None
        return _shown(_successful(response))

    def list(self, kind: str, *, selector: str = "") -> list[dict[str, Any]]:
        found = _successful(self.http.get(self.path(kind), params={"labelSelector": selector}))
        own = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [_shown(own | item) for item in found["items"]]

    def exists(self, kind: str, name: str) -> bool:
        return self.find(kind, name) is not None

    def path(self, kind: str, name: str = "") -> str:
        """Return the API server's path for an object in this namespace, or for all of the kind.

        `kind` is a name that kubectl takes too: the plural, the singular or a short one.
        """

        def known() -> bool:
            self._kinds.update(served_kinds(self.http))
            return kind in self._kinds

        if kind not in self._kinds:  # its CRD may be new
            self.wait_until(known, 10, f"the API server serves {kind}")
        return self._kinds[kind].path(self.namespace, name)

    @functools.cached_property
    def _kinds(self) -> dict[str, Kind]:
        return {}

    def wait_until(
        self,
        predicate: Callable[[], Value | None],
        timeout: float,
        describe: str | Callable[[], str],
        every: float = 0.3,
    ) -> Value:
        """`waiting.wait_until`, at a pace that suits an API server. A field that is not there yet (KeyError): no.

        `timeout` says what it takes at most on a quiet machine; it is raised to `PATIENCE`.
        """

        def seen() -> Value | None:
            try:
                return predicate()
            except KeyError:
                return None

        def description() -> str:
            try:
                return describe() if callable(describe) else describe
            except KeyError as error:
                return f"there is no {error} yet"

        return wait_until(seen, timeout=max(timeout, PATIENCE), describe=description, every=every)

    @functools.cached_property
    def http(self) -> httpx2.Client:
        """A client for the API server with the kubeconfig's credentials; also `http_client=` of the openai SDK."""
        return connect_with(self.kubeconfig)

    def service_proxy_url(self, service: str, port: int | str) -> str:
        """The URL of a service's port through the API server, for use with `http`; the service need not be reachable.

        The API server removes the `Authorization` header: it is for the API server itself.
        """
        path = f"api/v1/namespaces/{self.namespace}/services/{service}:{port}/proxy"
        return str(self.http.base_url.join(path))

    def run_pod(
        self,
        image: str,
        command: Sequence[str] = (),
        *,
        args: Sequence[str] = (),
        name: str = "run",
        timeout: float = 60,
        **spec: Any,
    ) -> FinishedPod:
        """Run a pod to its end, as restricted as Octavo's own, with a writable /tmp.

        Without `command` the image's entrypoint runs, with `args`; `spec` adds to the pod's spec, or replaces in it.
        """
        container = {
            "name": "main",
            "image": image,
            "command": list(command),
            "args": list(args),
            "securityContext": RESTRICTED_CONTAINER,
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        body = {
            "restartPolicy": "Never",
            "securityContext": RESTRICTED_POD,
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        } | spec
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})

        def ended() -> dict[str, Any] | None:
            status: dict[str, Any] = self.get("pod", name)["status"]
            return status if status["phase"] in ("Succeeded", "Failed") else None

        status = self.wait_until(ended, timeout, lambda: f"pod {name} ends:\n{self.kubectl('describe', 'pod', name)}")
        exit_code = status["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        logs = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        return FinishedPod(exit_code, logs)

    def diagnosis(self) -> str:
        """Return what a person would look at when something in this namespace went wrong."""
        parts = [self._ask("get", "events", "--sort-by=.lastTimestamp"), self._ask("get", "all", "-o", "wide")]
        for pod in self._ask("get", "pods", "-o", "name").splitlines():
            parts.append(self._ask("describe", pod))
            parts.append(self._ask("logs", pod, "--all-containers", "--prefix", "--tail=100"))
            parts.append(self._ask("logs", pod, "--all-containers", "--prefix", "--tail=50", "--previous"))
        parts.append(self.broken_answers())
        return "\n\n".join(part for part in parts if part)

    def broken_answers(self) -> str:
        """What the API server logged of answers that broke off behind it, if the cluster is ours.

        It also logs `Timeout or abort while handling` for each client that leaves, as OpenAI's SDK does at [DONE].
        """
        log = self.scratch.with_name("logs") / "kube-apiserver.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(line for line in lines if "ReverseProxy" in line)

    def _ask(self, *arguments: str) -> str:
        try:
            return self.kubectl(*arguments).strip()
        except CommandError as error:
            return "" if "--previous" in arguments else str(error)

    def _run(self, program: str, *arguments: str, stdin: str | None, timeout: float) -> str:
        command = [str(self.programs / program), f"--kubeconfig={self.kubeconfig}"]
        environment = os.environ | {
            "KUBECACHEDIR": str(self.scratch / "kubectl"),
            "HELM_CACHE_HOME": str(self.scratch / "helm"),
            "HELM_CONFIG_HOME": str(self.scratch / "helm"),
            "HELM_DATA_HOME": str(self.scratch / "helm"),
        }
        for _ in range(_CONNECTIONS):
            done = subprocess.run(
                [*command, *arguments],
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                timeout=timeout,
                env=environment,
                check=False,
            )
            if not done.returncode or "TLS handshake timeout" not in done.stderr:
                break
        if done.returncode:
            raise CommandError([program, *arguments], done.returncode, done.stderr + done.stdout)
        return done.stdout


def _successful(response: httpx2.Response) -> dict[str, Any]:
    if response.is_error:
        raise CommandError([response.request.method, str(response.request.url)], response.status_code, response.text)
    return dict(response.json())


def _shown(manifest: dict[str, Any]) -> dict[str, Any]:
    """Without what kubectl hides."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {**manifest, "metadata": metadata}


def as_yaml(*manifests: Manifest) -> str:
    """Return one YAML text of them all."""
    texts = []
    for manifest in manifests:
        if isinstance(manifest, Path):
            texts.append(manifest.read_text())
        else:
            texts.append(manifest if isinstance(manifest, str) else yaml.safe_dump(dict(manifest)))
    return "\n---\n".join(texts)
