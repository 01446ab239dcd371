"""An LLMService on several accelerators, whose ranks divide the model. The GPUs are only counted; all ranks compute on
the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from octavo_engine.llm import LLM, Completion
from octavo_engine.sampling_params import SamplingParams
from tests.operator.bad_llmservices import merged

from .client import Client
from .octavo import ONLY_ON_OURS, SAMPLES, installed_operator, sdk, wait_for_condition

pytestmark = ONLY_ON_OURS  # the node's GPUs are pretended

SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
LOADED = 300
TWO_GPUS = {"accelerator": {"count": 2}, "engine": {"dtype": "float32", "extraArgs": ["--device=cpu"]}}
"""To which SmolLM2's three KV heads, and the query heads that read them, are dealt unevenly."""
PROMPT = "The capital of France is"
TOKENS = 32


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide."""
    with installed_operator(cluster) as system:
        yield system


def answer_of_one() -> Completion:
    """Return the answer of one rank, in this process."""
    llm = LLM("smollm2", device="cpu", dtype="float32", max_model_len=2048, num_kv_blocks=128)
    [answer] = llm.generate([PROMPT], SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, logprobs=0))
    llm.close()
    return answer


@pytest.mark.timeout(600)
def test_a_pod_with_a_rank_for_each_gpu_answers_as_one_rank_does(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(SAMPLE, {"spec": TWO_GPUS}))
    expected = answer_of_one()  # while the pod starts
    wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
    (pod,) = namespace.list("pods", selector=f"octavo.dev/llmservice={NAME}")
    (container,) = pod["spec"]["containers"]
    assert "--tensor-parallel-size=2" in container["args"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"

    asked: Any = {"model": NAME, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "logprobs": 0}
    (choice,) = sdk(namespace, NAME).completions.create(**asked, extra_body={"ignore_eos": True}).choices
    assert choice.text == expected.text
    assert choice.logprobs is not None
    # The text alone would be the same in bfloat16, the default, where these differ by 0.08.
    assert choice.logprobs.token_logprobs == pytest.approx([token.logprob for token in expected.logprobs], abs=1e-3)
    assert len(expected.token_ids) == TOKENS
