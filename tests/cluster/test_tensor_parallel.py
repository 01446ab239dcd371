"""An LLMService on several accelerators: its ranks share the model. The GPUs are a number; all compute on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.operator.bad_llmservices import merged

from .client import Client
from .octavo import ONLY_ON_OURS, SAMPLES, installed_operator, sdk, wait_for_condition

pytestmark = ONLY_ON_OURS  # the node's GPUs are pretended

SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
LOADED = 300
TWO_GPUS = {"accelerator": {"count": 2}, "engine": {"extraArgs": ["--device=cpu"]}}
"""To which SmolLM2's three KV heads, and the query heads that read them, are dealt unevenly."""


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide."""
    with installed_operator(cluster) as system:
        yield system


@pytest.mark.timeout(600)
def test_a_pod_with_several_gpus_answers_with_a_rank_for_each(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(SAMPLE, {"spec": TWO_GPUS}))
    wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
    (pod,) = namespace.list("pods", selector=f"octavo.dev/llmservice={NAME}")
    (container,) = pod["spec"]["containers"]
    assert "--tensor-parallel-size=2" in container["args"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"

    question: Any = [{"role": "user", "content": "Name the capital of France."}]
    answer = sdk(namespace, NAME).chat.completions.create(model=NAME, messages=question, max_tokens=16, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
