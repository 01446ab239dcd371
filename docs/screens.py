"""Writes docs/reference/screens.md: what kubectl shows in five states, taken from a real Kubernetes (`make screens`).

Only the node's GPUs are simulated: each state is really brought about, and kubectl's output is written unchanged.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import octavo_operator
from tests.cluster.client import Client
from tests.cluster.cluster import GPUS, running_cluster
from tests.cluster.layout import HOME
from tests.cluster.octavo import condition, installed_operator
from tests.cluster.programs import PAUSE_IMAGE

PAGE = Path(__file__).parent / "reference" / "screens.md"
DEMO: dict[str, Any] = {"model": {"source": {"demo": "smollm2"}}, "accelerator": {"count": 0}}
LLAMA: dict[str, Any] = {
    "model": {"source": {"huggingFace": {"repository": "meta-llama/Llama-3.1-8B-Instruct"}}},
    "accelerator": {"count": 1},
}
TIMEOUT = 240


@dataclass(frozen=True)
class State:
    """One LLMService in one state, which is reached when the reason of its condition `kind` is `reason`."""

    name: str
    title: str
    text: str
    spec: dict[str, Any]
    reason: str
    kind: str = "Ready"
    loading_message: str = ""
    """A part of `status.loading.message` to wait for as well."""


STATES = (
    State(
        "ready",
        "Ready",
        "Ready is True once a replica answers.",
        DEMO,
        "Deployed",
        kind="Progressing",
    ),
    State(
        "loading",
        "Loading",
        "A pod runs and reads its weights, here with a quarter of a CPU, so that loading takes some time.",
        {**DEMO, "resources": {"limits": {"cpu": "250m"}}},
        "Deploying",
        loading_message="MiB",
    ),
    State(
        "no-gpu",
        "No GPU",
        "Another pod uses all GPUs of the only node.",
        LLAMA,
        "WaitingForGPU",
    ),
    State(
        "pull-error",
        "Image that cannot be pulled",
        "The registry does not exist.",
        {**DEMO, "engine": {"image": "registry.invalid/octavo-engine:9.9.9"}},
        "PullFailed",
    ),
    State(
        "out-of-memory",
        "Out of memory",
        "The engine reports before it loads anything how much memory it needs, how much there is, and what to change.",
        {**DEMO, "resources": {"limits": {"memory": "600Mi"}}},
        "OutOfMemory",
    ),
)


def main() -> int:
    """Entry point of `python -m docs.screens`."""
    with running_cluster(HOME / "screens", _say) as found:
        cluster = Client(found.kubeconfig, programs=HOME / "bin", scratch=HOME / "screens" / "scratch")
        cluster.kubectl("create", "namespace", "llm")
        client = cluster.in_namespace("llm")
        with installed_operator(cluster):
            client.apply(_gpu_hog())
            # The model that loads comes last, so that the list of all LLMServices still shows it loading.
            order = sorted(STATES, key=lambda state: bool(state.loading_message))
            screens = {state.name: _screen(client, state) for state in order}
            overview = client.kubectl("get", "llms", "-o", "wide")
        PAGE.write_text(_page(overview, [(state, screens[state.name]) for state in STATES]))
    return 0


def _gpu_hog() -> dict[str, Any]:
    hog = {"name": "hog", "image": PAUSE_IMAGE, "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "training"}, "spec": {"containers": [hog]}}


def _screen(client: Client, state: State) -> str:
    """Return the output of `kubectl describe` once the state is reached."""
    _say(f"waits for {state.title}")
    identity = {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService", "metadata": {"name": state.name}}
    client.apply({**identity, "spec": state.spec})

    def reached() -> str | None:
        service = client.get("llms", state.name)
        message = service.get("status", {}).get("loading", {}).get("message", "")
        done = condition(service, state.kind).get("reason") == state.reason and state.loading_message in message
        return client.kubectl("describe", "llms", state.name) if done else None

    return client.wait_until(reached, TIMEOUT, lambda: client.kubectl("describe", "llms", state.name), every=0.2)


def _page(overview: str, shown: list[tuple[State, str]]) -> str:
    parts = [
        "<!-- Made by `make screens` from a real Kubernetes. -->\n\n# What kubectl shows\n",
        "This page shows the complete output of kubectl for an LLMService in each of these states, on a real\n"
        f"Kubernetes with Octavo {octavo_operator.__version__}. Only the node's GPUs are simulated.\n"
        "[Failure modes](failure-modes.md) says what to do in each state.\n",
        _console("kubectl get llms -o wide", overview),
    ]
    for state, text in shown:
        parts += [f"## {state.title}\n", f"{state.text}\n", _console(f"kubectl describe llms {state.name}", text)]
    return "\n".join(parts)


def _console(command: str, output: str) -> str:
    return f'```console title="needs a cluster"\n$ {command}\n{output.rstrip()}\n```\n'


def _say(line: str) -> None:
    sys.stderr.write(f"screens: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
