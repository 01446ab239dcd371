"""`make cluster-demo`: helm install, kubectl apply, a chat, load, a rollout and autoscaling on a real Kubernetes.

It prints every command that it runs.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from demo.__main__ import QUESTION, SAMPLE, ask, say, summarize
from tests.cluster.client import Client
from tests.cluster.cluster import running_cluster
from tests.cluster.layout import CHECKOUT, HOME

IMAGES = ("--set", "operator.image.tag=dev", "--set", "engine.image.tag=dev")
NAME = "smollm2"
USERS = 8
SCALED = 600  # seconds within which the wanted replicas serve and all others are gone
ANSWERED = 600.0  # seconds that an answer may take while other engines load on the same machine
# A target of three of sixteen requests per replica, and windows of seconds, so that the demo scales in minutes.
QUICK = {"stabilizationWindowSeconds": 5, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}]}
AUTOSCALING = {
    "maxReplicas": 3,
    "targetConcurrencyPercent": 20,
    "behavior": {"scaleUp": {**QUICK, "stabilizationWindowSeconds": 0}, "scaleDown": QUICK},
}


def show(program: str, client: Client, *arguments: str, given: str | None = None) -> None:
    """Run a command with `given` as its input, and print the command and its output."""
    here = f" <<'EOF'\n{given.rstrip()}\nEOF" if given else ""
    command = shlex.join(arguments).replace(f"{CHECKOUT}/", "")  # as it is typed in the checkout
    print(f"\n$ {program} {command}{here}", flush=True)
    print(getattr(client, program)(*arguments, input=given).rstrip(), flush=True)


def install(client: Client) -> None:
    """Install the operator by its chart."""
    say("installs charts/octavo")
    arguments = ("install", "octavo", str(CHECKOUT / "charts" / "octavo"), *IMAGES, "--wait", "--timeout=90s")
    show("helm", client, *arguments)


def serve(client: Client) -> float:
    """Apply the sample LLMService and wait until it is Ready; returns the seconds that this took."""
    started = time.perf_counter()
    show("kubectl", client, "apply", "-f", "-", given=SAMPLE.read_text())
    last = ""
    while True:
        service = client.get("llms", NAME)
        conditions = {found["type"]: found for found in service.get("status", {}).get("conditions", [])}
        ready = conditions.get("Ready", {})
        line = f"{ready.get('reason', 'Pending')}: {ready.get('message', 'the operator has not reported yet')}"
        if line != last:
            say(line)
            last = line
        if ready.get("status") == "True":
            show("kubectl", client, "get", "llms,deployments,services,pods")
            return time.perf_counter() - started
        if time.perf_counter() - started > 300:
            raise TimeoutError(f"{NAME} is not ready after 300 s; last seen: {line}")
        time.sleep(0.5)


def load(openai: OpenAI) -> None:
    """Send requests of several users at once and print the figures."""
    say(f"{USERS} users ask at once")
    started = time.perf_counter()
    message = {"role": "user", "content": "Count from one to twenty."}

    def one(_: int) -> int:
        answer = openai.chat.completions.create(model=NAME, messages=[message], max_tokens=48)  # type: ignore[list-item]
        return answer.usage.completion_tokens if answer.usage else 0

    with ThreadPoolExecutor(USERS) as pool:
        tokens = sum(pool.map(one, range(USERS)))
    seconds = time.perf_counter() - started
    say(f"all were answered: {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.0f} tokens/s")


@contextmanager
def asking_users(openai: OpenAI) -> Iterator[None]:
    """Let users ask one question after another until the block ends; raise the error of an answer that failed."""
    say(f"{USERS} users ask one question after the other")
    ended = threading.Event()
    message = {"role": "user", "content": "Count from one to twenty."}

    def user() -> int:
        answers = 0
        while not ended.is_set():
            openai.chat.completions.create(model=NAME, messages=[message], max_tokens=48)  # type: ignore[list-item]
            answers += 1
        return answers

    with ThreadPoolExecutor(USERS) as pool:
        users = [pool.submit(user) for _ in range(USERS)]
        try:
            yield
        finally:
            ended.set()
            say("the users leave, each with its last answer")
        say(f"all were answered: {sum(each.result() for each in users)} answers, none failed")


def change(client: Client, spec: dict[str, Any]) -> None:
    """Change the LLMService's spec."""
    show("kubectl", client, "patch", "llms", NAME, "--type=merge", "-p", json.dumps({"spec": spec}))


def roll_out(client: Client, openai: OpenAI) -> None:
    """Replace the pod while users ask: the old one leaves after the new one is ready, and ends its answers first."""
    with asking_users(openai):
        change(client, {"engine": {"env": [{"name": "EDITION", "value": "second"}]}})
        while (service := client.get("llms", NAME))["status"]["observedGeneration"] < service["metadata"]["generation"]:
            time.sleep(0.5)
        show("kubectl", client, "rollout", "status", f"deployment/{NAME}", f"--timeout={SCALED}s")
        show("kubectl", client, "get", "llms,pods")


def scale(client: Client, openai: OpenAI) -> None:
    """Send requests of the same users without a pause: replicas are added, and removed after the load ends."""
    change(client, {"autoscaling": AUTOSCALING})
    with asking_users(openai):
        follow(client, 3)
        show("kubectl", client, "get", "llms,hpa,pods")
    follow(client, 1)


def follow(client: Client, replicas: int) -> None:
    """Print the autoscaler's messages until exactly `replicas` replicas serve."""
    started, last = time.perf_counter(), ""
    while True:
        status = client.get("llms", NAME)["status"]
        line = f"{status['readyReplicas']} of {status['replicas']} replicas serve; autoscaling: "
        line += status.get("autoscaling", {}).get("message", "not begun")
        if line != last:
            say(line)
            last = line
        if status["replicas"] == status["readyReplicas"] == replicas:
            return
        if time.perf_counter() - started > SCALED:
            raise TimeoutError(f"{NAME} has not come to {replicas} replicas in {SCALED} s; last seen: {line}")
        time.sleep(0.5)


def main() -> int:
    """Entry point of `python -m demo.cluster`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with running_cluster(HOME / "demo", lambda line: say(f"cluster: {line}")) as cluster:
        client = Client(cluster.kubeconfig, programs=HOME / "bin", scratch=HOME / "demo" / "scratch")
        install(client)
        ready_after = serve(client)
        endpoint = client.service_proxy_url(NAME, 80) + "/v1"
        openai = OpenAI(base_url=endpoint, api_key="none", http_client=client.http, timeout=ANSWERED)
        summarize(ask(openai, QUESTION), endpoint, ready_after)
        load(openai)
        roll_out(client, openai)
        scale(client, openai)
        show("kubectl", client, "delete", "llms", NAME)
        show("helm", client, "uninstall", "octavo", "--wait")
    return 0


if __name__ == "__main__":
    sys.exit(main())
