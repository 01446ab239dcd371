"""`helm test`: creates a suspended LLMService, which runs no pod, and waits until the operator writes its status."""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = "https://kubernetes.default.svc"
NAME = f"helm-test-{int(time.time())}"
SECONDS = 60


def call(method: str, path: str, body: dict | None = None) -> dict:
    """Send a request to the API server; returns its decoded response."""
    request = urllib.request.Request(SERVER + path, method=method)
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    request.add_header("Content-Type", "application/json")
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(
        request, data, 10, context=ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    ) as done:
        return json.load(done)


def main(namespace: str) -> int:
    """Return 0 if the operator writes the status of a new LLMService within a minute, 1 if not."""
    path = f"/apis/octavo.dev/v1alpha1/namespaces/{namespace}/llmservices"
    spec = {"model": {"source": {"demo": "smollm2"}}, "accelerator": {"count": 0}, "suspend": True}
    metadata = {"name": NAME, "labels": {"app.kubernetes.io/name": "octavo-test"}}
    call("POST", path, {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService", "metadata": metadata, "spec": spec})
    print(f"created the suspended LLMService {namespace}/{NAME}")
    try:
        for _ in range(SECONDS):
            status = call("GET", f"{path}/{NAME}").get("status", {})
            ready = [found for found in status.get("conditions", []) if found["type"] == "Ready"]
            if ready and ready[0]["reason"] == "Suspended":
                print(f"the operator answers: {ready[0]['message']}")
                return 0
            time.sleep(1)
        print(f"the operator wrote no condition Ready within {SECONDS} s; last status: {json.dumps(status)}")
        return 1
    finally:
        call("DELETE", f"{path}/{NAME}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode()}")
    except OSError as error:  # URLError, and a connection that breaks off
        sys.exit(f"cannot ask the API server at {SERVER}: {error}; check DNS, and the network policies for this pod")
