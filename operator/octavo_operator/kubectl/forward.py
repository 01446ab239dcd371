"""A port of this machine that leads to a Service of the cluster, by `kubectl port-forward`."""

from __future__ import annotations

import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from octavo_operator.kubectl.client import Kubectl, KubectlError

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


@contextmanager
def forwarded(kubectl: Kubectl, service: str) -> Iterator[str]:
    """Yield the base URL of the OpenAI API of the LLMService `service`; raises KubectlError if no port is forwarded.

    kubectl forwards all connections to one pod, and ends when that pod does.
    """
    service_port = kubectl.get("services", service)["spec"]["ports"][0]["port"]
    command = kubectl.command("port-forward", f"service/{service}", f":{service_port}", "--address=127.0.0.1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = process.stdout or iter(())
        reader = threading.Thread(target=deque, args=(lines, 0))
        try:
            port = _assigned_port(lines)
            reader.start()  # kubectl writes a line for each connection, and stops when a pipe that is not read is full
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            if reader.ident is not None:
                reader.join()


def _assigned_port(lines: Iterable[str]) -> str:
    """Return the port that kubectl forwards; KubectlError, with what it said, if it ends before it names one."""
    said = []
    for line in lines:
        if assigned := _FORWARDING.match(line):
            return assigned[1]
        said.append(line)
    raise KubectlError("".join(said).strip() or "kubectl port-forward ended without a word")
