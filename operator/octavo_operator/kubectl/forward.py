"""A port of this machine that leads to a Service of the cluster, by `kubectl port-forward`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from octavo_operator.kubectl.client import Kubectl, KubectlError

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


@contextmanager
def forwarded(kubectl: Kubectl, service: str) -> Iterator[str]:
    """Yield the base URL of the OpenAI API of the LLMService `service`; raises KubectlError if no port is forwarded.

    kubectl forwards all connections to one pod, and ends when that pod does.
    """
    port = kubectl.get("services", service)["spec"]["ports"][0]["port"]
    command = kubectl.command("port-forward", f"service/{service}", f":{port}", "--address=127.0.0.1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assigned = _FORWARDING.match(process.stdout.readline() if process.stdout else "")
            if assigned is None:
                raise KubectlError(process.stderr.read().strip() if process.stderr else "port-forward failed")
            yield f"http://127.0.0.1:{assigned[1]}/v1"
        finally:
            process.terminate()
