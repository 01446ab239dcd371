"""SmolLM2 gives the tokens of Hugging Face transformers: alone, beside other requests, and from the prefix cache.

The same holds for Llama configurations with random weights, which are preempted for lack of memory. All in float32,
greedy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from reference import assert_prompts, assert_same

from octavo_engine import LLM, SamplingParams

pytestmark = pytest.mark.usefixtures("several_threads")

GREEDY = SamplingParams(max_tokens=64, temperature=0.0, logprobs=20, ignore_eos=True)
SHORT = replace(GREEDY, max_tokens=32)
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small dragon who",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "The three laws of thermodynamics say that",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at 100 degrees because",
    "SELECT name, COUNT(*) FROM",
    "La capitale de l'Italie est",
    "Q: Why is the sky blue?\nA:",
    "In 1969 the first human",
    "<html>\n<head>\n<title>",
    "To make a good omelette you need",
    "The mitochondria is",
    "import numpy as np\n\nx =",
    "She opened the old wooden door and",
    "The quick brown fox",
    "A prime number is",
    "Roses are red,",
    "The difference between TCP and UDP is that",
]


def settings(tmp: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": "float32", "device": "cpu", "max_model_len": 512, **tmp}


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LLM]:
    llm = LLM("smollm2", **settings({"num_kv_blocks": 512}))  # as many as 16 requests can need, not 4 GiB
    yield llm
    llm.close()


def test_alone(smollm2: LLM, smollm2_reference: Any) -> None:
    answers = [smollm2.generate([prompt], SHORT)[0] for prompt in PROMPTS[:4]]
    assert_same(smollm2_reference, answers, SHORT.max_tokens)


def test_in_a_batch_of_sixteen_mixed_requests(smollm2: LLM, smollm2_reference: Any) -> None:
    """Ten are greedy. The others sample with every filter and penalty, and must not change what the greedy ones say."""
    rng = random.Random(4)
    others = [
        SamplingParams(
            max_tokens=rng.randint(1, 80),
            temperature=rng.choice([0.5, 1.0, 1.5]),
            top_k=rng.choice([0, 5, 50]),
            top_p=rng.choice([0.8, 1.0]),
            min_p=rng.choice([0.0, 0.1]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            presence_penalty=rng.choice([0.0, 0.5]),
            seed=rng.randint(0, 99),
        )
        for _ in range(6)
    ]
    longer = [prompt * rng.randint(1, 12) for prompt in PROMPTS[14:]]
    answers = smollm2.generate([*PROMPTS[4:14], *longer], [GREEDY] * 10 + others)
    assert_same(smollm2_reference, answers[:10])


def test_choices_are_scored_as_by_lm_eval(smollm2: LLM, smollm2_reference: Any) -> None:
    """The likelier of two continuations is the answer. The second round's prefixes are cached."""
    questions = {
        "The capital of France is": (" Paris", " Rome"),
        "Two plus two equals": (" four", " blue"),
        "Water freezes at zero degrees": (" Celsius", " banana"),
        "The opposite of hot is": (" cold", " Monday"),
    }
    texts = [question + choice for question, choices in questions.items() for choice in choices]
    for _ in range(2):
        answers = smollm2.generate(texts, SamplingParams(max_tokens=0, prompt_logprobs=1))
        assert_prompts(smollm2_reference, answers, 1)
        scores = [sum(entry.logprob for entry in answer.prompt_logprobs) for answer in answers]
        assert all(right > wrong for right, wrong in zip(scores[::2], scores[1::2], strict=True))


def test_a_hit_in_the_prefix_cache_changes_no_token(smollm2: LLM, smollm2_reference: Any) -> None:
    prompt = "You are a careful assistant. Answer briefly and in one sentence. " * 4 + "What is the sun made of?"
    first, second = (smollm2.generate([prompt], SHORT)[0] for _ in range(2))
    assert first.cached_tokens == 0
    assert second.cached_tokens == (len(second.prompt_token_ids) - 1) // 16 * 16 > 0
    assert first.token_ids == second.token_ids
    assert_same(smollm2_reference, [second], SHORT.max_tokens)


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "gqa-1": {"num_key_value_heads": 8},
    "gqa-4": {"num_key_value_heads": 2},
    "gqa-8": {"num_key_value_heads": 1},
    "explicit-head-dim": {"head_dim": 24, "num_key_value_heads": 4},
    "attention-bias": {"attention_bias": True, "mlp_bias": True},
    "llama3-rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "several-files": {"num_hidden_layers": 4, "vocab_size": 900},
}


QWEN3 = {"head_dim": 24, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}


@pytest.mark.parametrize("name", [*CONFIGURATIONS, "qwen3"])
def test_random_models(name: str, tmp_path: Path) -> None:
    """Weights drawn at random, larger than a trained model's, so that answers vary; so few blocks that some wait."""
    torch.manual_seed(7)
    base = {
        "vocab_size": 500,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if name == "qwen3":
        config = transformers.Qwen3Config(**{**base, **QWEN3})
        model = transformers.Qwen3ForCausalLM(config).eval()
    else:
        config = transformers.LlamaConfig(**{**base, **CONFIGURATIONS[name]})
        model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases begin as zeros and norms as ones: give them something to do
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    shard = {"max_shard_size": "200KB"} if name == "several-files" else {}
    model.save_pretrained(tmp_path, **shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (name == "several-files")
    make_tokenizer(tmp_path, config.vocab_size)
    llm = LLM(
        str(tmp_path),
        **settings({"max_model_len": 128, "max_num_batched_tokens": 48, "max_num_seqs": 12, "num_kv_blocks": 32}),
    )
    rng = random.Random(1)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(rng.randint(1, 60))] for _ in range(12)]
    answers = llm.generate(prompts, SHORT)
    assert len({tuple(answer.token_ids) for answer in answers}) == 12, "the answers should differ"
    assert_same(model, answers, SHORT.max_tokens)
    assert llm.report().preemptions >= 4
    llm.close()


def make_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer of one word a token: these models speak in ids."""
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(vocab_size)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
