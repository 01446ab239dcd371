"""Reaches the cluster through the user's own kubectl, with its contexts, credentials and rights."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d")
"""The beginning of lines that kubectl's libraries log, such as one for each try to connect."""
_NO_CLUSTER = (
    "kubectl has no connection to a cluster: check that the cluster answers from here, and that the address, "
    "certificate and credentials in the kubeconfig are right; --kubeconfig or KUBECONFIG names another"
)
NO_CRD = "Octavo is not installed in this cluster: helm install octavo charts/octavo"
_HINTS = {
    "was refused": _NO_CLUSTER,
    "Unable to connect to the server": _NO_CLUSTER,
    "failed to download openapi": _NO_CLUSTER,  # the first step of kubectl create
    'have a resource type "llmservices': NO_CRD,
    'no matches for kind "LLMService"': NO_CRD,
    "(NotFound): llmservices": "kubectl octavo status -A lists the LLMServices of all namespaces",
    'namespaces "': "kubectl get namespaces lists the namespaces; kubectl create namespace NAME makes one",
    "(AlreadyExists)": "talk to it with kubectl octavo chat, or give another --name",
}


class KubectlError(RuntimeError):
    """kubectl is not installed, or failed; the message is its own."""


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl with the same `flags` (context, namespace, …) each time. All methods raise `KubectlError`."""

    flags: Sequence[str] = ()

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object of this kind and name."""
        found: dict[str, Any] = json.loads(self.output("get", kind, name, "--output=json"))
        return found

    def find(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object of this kind and name; empty where there is none."""
        text = self.output("get", kind, name, "--output=json", "--ignore-not-found")
        return json.loads(text) if text.strip() else {}

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """Return all objects of this kind that `arguments` of kubectl select."""
        found: list[dict[str, Any]] = json.loads(self.output("get", kind, *arguments, "--output=json"))["items"]
        return found

    def pod_answer(self, pod: Mapping[str, Any], port: int, path: str) -> str:
        """Return a pod's answer to GET through the API server; needs the right to get `pods/proxy`."""
        metadata = pod["metadata"]
        where = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{port}/proxy{path}"
        return self.output("get", "--raw", where)

    def output(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its standard output."""
        try:
            done = subprocess.run(self.command(*arguments), capture_output=True, text=True, input=stdin, check=False)
        except FileNotFoundError:
            raise KubectlError("there is no kubectl on PATH") from None
        if done.returncode != 0:
            raise KubectlError(_reason(done.stderr) or f"kubectl ended with code {done.returncode}")
        return done.stdout

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a call."""
        return ["kubectl", *self.flags, *arguments]


def _reason(stderr: str) -> str:
    """Return kubectl's error without its libraries' log lines, and advice for the errors that are known."""
    message = "\n".join(line for line in stderr.splitlines() if not _LOG_LINE.match(line)).strip() or stderr.strip()
    hints = [hint for sign, hint in _HINTS.items() if sign in message]
    return "\n".join([message, *hints])
