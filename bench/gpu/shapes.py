"""The models that are measured: published shapes, random weights.

The numbers that determine speed are those of the published configurations. Weights are drawn at random, so no download
is needed. A checkpoint is written in Hugging Face's layout, with a tokenizer whose words are `w0`, `w1` and so on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_SHARD_BYTES = 2 << 30
_STD = 0.02
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder with grouped-query attention and a gated feed-forward, which may consist of experts."""

    name: str
    architecture: str
    model_type: str
    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward, or of one expert."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    rope: dict[str, Any]
    tied: bool = False
    qk_norm: bool = False
    biases: bool = False
    """Whether all four projections of attention have biases."""
    experts: int = 0
    """The number of experts; 0: a dense feed-forward. Experts are in MXFP4: 4 bits a weight and a scale of 8 bits
    for 32."""
    active_experts: int = 0
    """The number of experts for each token."""
    window: int | None = None
    """The window of every second layer's attention, beginning with the first."""
    sinks: bool = False

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all KV heads."""
        return self.kv_heads * self.head_dim

    def config(self) -> dict[str, Any]:
        """Return the content of config.json."""
        config: dict[str, Any] = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_position,
            "rope_parameters": self.rope,
            "rope_theta": self.rope["rope_theta"],
            "tie_word_embeddings": self.tied,
            "attention_bias": self.biases,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
        if self.window is not None:
            kinds = ("sliding_attention", "full_attention")
            config |= {"sliding_window": self.window, "layer_types": [kinds[i % 2] for i in range(self.layers)]}
        if self.experts:
            config |= {
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.active_experts,
                "swiglu_limit": 7.0,
                "quantization_config": {"quant_method": "mxfp4"},
            }
        return config

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each tensor; names that end in `_blocks` and `_scales` are bytes, others bfloat16."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for index in range(self.layers):
            for name, shape in (*self._attention(), *self._feed_forward()):
                yield f"model.layers.{index}.{name}", shape
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def _attention(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "input_layernorm.weight", (self.hidden,)
        sizes = {"q": self.query, "k": self.key, "v": self.key}
        for name, size in sizes.items():
            yield f"self_attn.{name}_proj.weight", (size, self.hidden)
            if self.biases:
                yield f"self_attn.{name}_proj.bias", (size,)
        yield "self_attn.o_proj.weight", (self.hidden, self.query)
        if self.biases:
            yield "self_attn.o_proj.bias", (self.hidden,)
        if self.qk_norm:
            yield "self_attn.q_norm.weight", (self.head_dim,)
            yield "self_attn.k_norm.weight", (self.head_dim,)
        if self.sinks:
            yield "self_attn.sinks", (self.heads,)

    def _feed_forward(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "post_attention_layernorm.weight", (self.hidden,)
        if not self.experts:
            yield "mlp.gate_proj.weight", (self.inner, self.hidden)
            yield "mlp.up_proj.weight", (self.inner, self.hidden)
            yield "mlp.down_proj.weight", (self.hidden, self.inner)
            return
        yield "mlp.router.weight", (self.experts, self.hidden)
        yield "mlp.router.bias", (self.experts,)
        for name, rows, columns in (("gate_up", 2 * self.inner, self.hidden), ("down", self.hidden, self.inner)):
            yield f"mlp.experts.{name}_proj_blocks", (self.experts, rows, columns // 32, 16)
            yield f"mlp.experts.{name}_proj_scales", (self.experts, rows, columns // 32)
            yield f"mlp.experts.{name}_proj_bias", (self.experts, rows)


def _llama(**numbers: Any) -> Shape:
    return Shape(architecture="LlamaForCausalLM", model_type="llama", rope=_LLAMA3_ROPE, **numbers)


def _qwen3(**numbers: Any) -> Shape:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    return Shape(architecture="Qwen3ForCausalLM", model_type="qwen3", rope=rope, tied=True, qk_norm=True, **numbers)


def _gpt_oss(**numbers: Any) -> Shape:
    return Shape(
        architecture="GptOssForCausalLM", model_type="gpt_oss", rope=_YARN_ROPE, biases=True, sinks=True, **numbers
    )


LLAMA_8B = _llama(
    name="llama-8b",
    layers=32,
    hidden=4096,
    inner=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    max_position=131072,
)
"""meta-llama/Llama-3.1-8B."""
LLAMA_1B = _llama(
    name="llama-1b",
    layers=16,
    hidden=2048,
    inner=8192,
    heads=32,
    kv_heads=8,
    head_dim=64,
    vocab=128256,
    max_position=131072,
    tied=True,
)
"""meta-llama/Llama-3.2-1B."""
QWEN3_06B = _qwen3(
    name="qwen3-0.6b",
    layers=28,
    hidden=1024,
    inner=3072,
    heads=16,
    kv_heads=8,
    head_dim=128,
    vocab=151936,
    max_position=40960,
)
"""Qwen/Qwen3-0.6B."""
GPT_OSS_20B = _gpt_oss(
    name="gpt-oss-20b",
    layers=24,
    hidden=2880,
    inner=2880,
    heads=64,
    kv_heads=8,
    head_dim=64,
    vocab=201088,
    max_position=131072,
    experts=32,
    active_experts=4,
    window=128,
)
"""openai/gpt-oss-20b."""

_TINY: dict[str, Any] = {
    "layers": 2,
    "hidden": 64,
    "inner": 96,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "vocab": 512,
    "max_position": 4096,
}
TINY_LLAMA = _llama(name="tiny-llama", **_TINY)
TINY_QWEN3 = _qwen3(name="tiny-qwen3", **_TINY)
TINY_GPT_OSS = _gpt_oss(name="tiny-gpt-oss", **_TINY, experts=4, active_experts=2, window=32)


def write_checkpoint(shape: Shape, directory: Path, device: torch.device, std: float = _STD) -> Path:
    """Write `shape` with random weights into `directory`, unless it is there already; returns the directory.

    Norms are drawn around 1, all else around 0 with standard deviation `std`, on `device`, which should be a fast one.
    """
    done, config = directory / "model.safetensors.index.json", json.dumps(shape.config(), indent=1)
    if done.is_file() and (directory / "config.json").read_text() == config:
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    (directory / "config.json").write_text(config)
    write_tokenizer(shape.vocab, directory / "tokenizer.json")
    done.write_text(json.dumps({"metadata": {}, "weight_map": _write_shards(shape, directory, device, std)}))
    return directory


def write_tokenizer(vocab: int, path: Path) -> None:
    """Write a tokenizer.json with `vocab` words: `w0`, `w1` and so on."""
    words = ",".join(f'"w{index}":{index}' for index in range(vocab))
    model = f'{{"type":"WordLevel","vocab":{{{words}}},"unk_token":"w0"}}'
    nothing = '"truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":'
    nothing += '{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null'
    path.write_text(f'{{"version":"1.0",{nothing},"model":{model}}}')


def _write_shards(shape: Shape, directory: Path, device: torch.device, std: float) -> dict[str, str]:
    """Write the tensors, and return the name of the file that contains each."""
    from safetensors.torch import save_file

    generator = torch.Generator(device).manual_seed(0)
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        file = f"model-{len(set(places.values())) + 1:05d}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
        shard.clear()

    for name, size in shape.tensors():
        shard[name] = _random(name, size, generator, std).cpu()
        if sum(tensor.nbytes for tensor in shard.values()) > _SHARD_BYTES:
            flush()
    if shard:
        flush()
    return places


def _random(name: str, size: tuple[int, ...], generator: torch.Generator, std: float) -> torch.Tensor:
    device = generator.device
    if name.endswith("_blocks"):
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator, device=device)
    if name.endswith("_scales"):  # 2 ** (scale - 127): the largest weight of a block, 6, becomes about 3 * std
        return torch.randint(119, 122, size, dtype=torch.uint8, generator=generator, device=device)
    tensor = torch.empty(size, dtype=torch.bfloat16, device=device)
    if "norm" in name:
        return tensor.uniform_(0.5, 1.5, generator=generator)
    return tensor.normal_(std=std, generator=generator)
