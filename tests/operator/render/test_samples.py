"""The samples name models of supported families, so that pods of every sample can serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.model.families import FAMILIES
from tests.operator.golden import SAMPLES, llmservice

ARCHITECTURES = {
    "smollm2": "LlamaForCausalLM",  # the demo
    "DeepSeek-R1-Distill-Llama-8B": "LlamaForCausalLM",
    "Hermes-3-Llama-3.1-8B": "LlamaForCausalLM",
    "Llama-3.1-8B-Instruct": "LlamaForCausalLM",
    "Llama-3.2-3B-Instruct": "LlamaForCausalLM",
    "TinyLlama-1.1B-Chat-v1.0": "LlamaForCausalLM",
    "Yi-1.5-34B-Chat-16K": "LlamaForCausalLM",
    "Yi-1.5-9B-Chat": "LlamaForCausalLM",
}
"""What their config.json says."""


def model(path: Path) -> str:
    """The last part of the name of the sample's model, wherever it comes from."""
    source = llmservice(path).spec.model.source
    (place,) = (
        place
        for place in (
            source.demo,
            source.hugging_face and source.hugging_face.repository,
            source.s3 and source.s3.prefix,
            source.image and source.image.path,
            source.persistent_volume_claim and source.persistent_volume_claim.path,
        )
        if place
    )
    return place.rstrip("/").rpartition("/")[2]


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_sample_names_a_model_that_the_engine_can_load(path: Path) -> None:
    assert ARCHITECTURES[model(path)] in FAMILIES
