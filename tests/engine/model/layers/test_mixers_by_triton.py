"""Layers with a state, and latent attention, give transformers' answers with the Triton kernels (interpreted)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import RandomAdapter
from checkpoints import SIZES, reference_model, save, save_words
from expert_adapters import StackedAdapter
from reference import assert_same

from bench.gpu.shapes import TINY_GPT_OSS, write_checkpoint
from octavo_engine.llm import Completion
from octavo_engine.model_outputs import TokenLogprobs

_HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [0, 1],
}
_LATENT = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 2,
    "n_group": 2,
    "topk_group": 1,
}
MODELS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "qwen3-next": (
        "Qwen3Next",
        _HYBRID,
        {"causal_conv_kernel", "conv_state_kernel", "recurrent_kernel", "chunk_kernel", "scan_kernel"},
    ),
    "deepseek-v3": ("DeepseekV3", _LATENT, {"latent_attention_kernel", "write_kv_kernel", "attention_reduce_kernel"}),
}
"""A family, a configuration whose sizes the kernels have tiles for, and the kernels."""


ADAPTERS: dict[str, dict[str, RandomAdapter]] = {
    "deepseek-v3": {
        "absorbed": RandomAdapter(3, ("kv_b_proj",), seed=1),
        "all": RandomAdapter(
            5, ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "up_proj"), layers=[1], seed=2
        ),
    }
}
"""LoRA adapters that answer beside the base, two of them in one batch."""


Answers = tuple[dict[str | None, list[Completion]], set[str]]


@pytest.fixture(scope="module")
def answers_by_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Answers]]:
    """Returns the answers of the model in a folder by interpreted kernels, by adapter, and the kernels that ran.

    One process answers for all tests, as importing PyTorch and Triton takes it seconds.
    """
    path, errors = Path(__file__).with_name("interpreted_mixers.py"), tmp_path_factory.mktemp("interpreted") / "errors"
    root = path.parents[4]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, str(path)], env=environment, cwd=root, text=True, stderr=stderr, **pipes
        ) as process,
    ):

        def answer(folder: Path, *adapters: str) -> Answers:
            print(json.dumps([str(folder), *adapters]), file=process.stdin, flush=True)
            line = process.stdout.readline() if process.stdout else ""
            assert line, errors.read_text()[-8000:]
            return _parsed(json.loads(line))

        yield answer
    assert process.returncode == 0, errors.read_text()[-8000:]


def _parsed(found: dict[str, Any]) -> Answers:
    answers: dict[str | None, list[Completion]] = {}
    for name, prompt, tokens, logprobs in found["answers"]:
        entries = [TokenLogprobs(*pair, 1, ()) for pair in zip(tokens, logprobs, strict=True)]
        answers.setdefault(name, []).append(Completion(prompt, "", tokens, entries))
    return answers, {kernel for kernel, count in found["launched"].items() if count}


@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_answer_as_the_reference(
    name: str, tmp_path: Path, answers_by_kernels: Callable[..., Answers]
) -> None:
    """Chunks of prompts, prompts beside decodes, and decodes padded to a graph's batch."""
    family, changes, kernels = MODELS[name]

    def model() -> Any:
        return reference_model(family, **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")), **changes)

    adapters = ADAPTERS.get(name, {})
    folder = save(model(), tmp_path / name)
    save_words(folder, SIZES["vocab_size"])
    saved = [f"{key}={adapter.save(model(), tmp_path / key)}" for key, adapter in adapters.items()]
    answers, launched = answers_by_kernels(folder, *saved)
    assert kernels | ({"lora_shrink_kernel", "lora_expand_kernel"} if adapters else set()) <= launched
    assert_same(model(), answers[None], 3)
    for key, adapter in adapters.items():
        assert_same(adapter.merge(model()), answers[key], 3)


def test_experts_in_mxfp4_answer_as_the_reference_dequantized(
    tmp_path: Path, answers_by_kernels: Callable[..., Answers]
) -> None:
    """Beside them an adapter of the experts, which answers as its weights merged into the dequantized ones."""
    from transformers import GptOssForCausalLM, Mxfp4Config

    folder = write_checkpoint(TINY_GPT_OSS, tmp_path / "tiny", torch.device("cpu"), std=0.3)
    plain = Mxfp4Config(dequantize=True)

    def model() -> Any:
        return GptOssForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=plain).eval()

    adapter = StackedAdapter(3, seed=1)
    answers, launched = answers_by_kernels(folder, f"experts={adapter.save(model(), tmp_path / 'experts')}")
    assert launched >= {"moe_gate_up_kernel", "moe_down_kernel", "lora_shrink_kernel", "mxfp4"}
    assert_same(model(), answers[None], 3)
    assert_same(adapter.merge(model()), answers["experts"], 3)
