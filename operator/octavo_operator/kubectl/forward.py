"""A port of this machine that leads to a Service of the cluster, by `kubectl port-forward`."""

from __future__ import annotations

import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from octavo_operator.kubectl.client import Kubectl, KubectlError

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


@contextmanager
def forwarded(kubectl: Kubectl, service: str) -> Iterator[str]:
    """Yield the base URL of the OpenAI API of the LLMService `service`; raises KubectlError if no port is forwarded.

    kubectl forwards all connections to one pod, and ends when that pod does.
    """
    service_port = kubectl.get("services", service)["spec"]["ports"][0]["port"]
    command = kubectl.command("port-forward", f"service/{service}", f":{service_port}", "--address=127.0.0.1")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = cast(TextIO, process.stdout)
    try:
        port = _assigned_port(lines)
        # kubectl writes a line for each connection, and stops when a pipe that is not read is full. Nothing waits for
        # the end of the pipe: where kubectl is a wrapper, a program that it has started may keep it open.
        threading.Thread(target=_read_to_the_end, args=(lines,), daemon=True).start()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def _read_to_the_end(lines: TextIO) -> None:
    with lines:
        deque(lines, 0)


def _assigned_port(lines: TextIO) -> str:
    """Return the port that kubectl forwards; KubectlError, with what it said, if it ends before it names one."""
    said = []
    for line in lines:
        if assigned := _FORWARDING.match(line):
            return assigned[1]
        said.append(line)
    lines.close()
    raise KubectlError("".join(said).strip() or "kubectl port-forward ended without a word")
