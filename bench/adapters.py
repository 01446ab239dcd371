"""Compares eight LoRA adapters in one batch with the base model: `python -m bench.adapters [REQUESTS] [TOKENS]`.

Prints tokens per second of both on SmolLM2, and whether the first answer is the same as without other requests.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from octavo_engine import LLM, SamplingParams

ADAPTERS, RANK, LAYERS = 8, 8, 30
SHAPES = {
    "self_attn.q_proj": (576, 576), "self_attn.k_proj": (192, 576), "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576), "mlp.gate_proj": (1536, 576), "mlp.up_proj": (1536, 576),
    "mlp.down_proj": (576, 1536),
}  # fmt: skip
"""Rows and columns of SmolLM2-135M's linear layers."""


def make_adapter(folder: Path, seed: int, rank: int = RANK) -> Path:
    """Write a random adapter of all linear layers, as PEFT does, and return its folder."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(LAYERS):
        for name, (rows, columns) in SHAPES.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{module}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) * 0.02
            tensors[f"{module}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.02
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


def main() -> None:
    """Entry point of `python -m bench.adapters`."""
    requests, tokens = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (32, 32)
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    prompts = [[(7 * i + j) % 40_000 + 100 for j in range(16)] for i in range(requests)]
    with tempfile.TemporaryDirectory() as folder:
        modules = [f"a{n}={make_adapter(Path(folder) / f'a{n}', n)}" for n in range(ADAPTERS)]
        llm = LLM(
            "smollm2", device="cpu", enable_lora=True, max_loras=ADAPTERS, max_lora_rank=RANK, lora_modules=modules,
            max_model_len=256, enable_prefix_caching=False,
        )  # fmt: skip
        mixed = [f"a{i % ADAPTERS}" for i in range(requests)]
        llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0.0), adapter=mixed)
        rates = {}
        for label, adapter in (("base", None), ("8 adapters", mixed)) * 2:
            started = time.perf_counter()
            answers = llm.generate(prompts, sampling, adapter=adapter)
            rate = requests * tokens / (time.perf_counter() - started)
            rates[label] = max(rate, rates.get(label, 0.0))
        alone = llm.generate(prompts[:1], sampling, adapter=mixed[0])[0]
        llm.close()
    for label, rate in rates.items():
        print(f"{label}: {rate:.0f} tokens/s ({rate / rates['base']:.0%})")
    print(f"the first answer is the same without other requests: {answers[0].token_ids == alone.token_ids}")


if __name__ == "__main__":
    main()
