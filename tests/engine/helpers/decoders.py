"""Small Llamas with random weights, made without a checkpoint."""

from __future__ import annotations

import torch

from octavo_engine.model.decoder import Decoder
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.module_rules import Quantization
from octavo_engine.model.spec import (
    AttentionSpec,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    QKNormSpec,
    RopeSpec,
)

WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}


def make_decoder(dtype: torch.dtype, quantization: FP8Scheme | None = None, **changes: int) -> Decoder:
    sizes = {"vocab_size": 300, "qk_norm": False, **changes}
    norm = NormSpec(1e-5)
    attention = AttentionSpec(
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_kv_heads"],
        head_dim=sizes["head_dim"],
        scale=sizes["head_dim"] ** -0.5,
        rope=RopeSpec(10000.0),
        qk_norm=QKNormSpec(norm) if sizes["qk_norm"] else None,
    )
    layer = LayerSpec(
        mixer=attention,
        feed_forward=MLPSpec(intermediate_size=sizes["intermediate_size"]),
        norms=LayerNorms(before_mixer=norm, before_feed_forward=norm),
    )
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        hidden_size=sizes["hidden_size"],
        vocab_size=sizes["vocab_size"],
        max_position=4096,
        dtype=dtype,
        eos_token_ids=(),
        layers=(layer, layer),
        norm=norm,
        head=HeadSpec(tied=True),
        quantization=None if quantization is None else Quantization(quantization),
    )
    decoder = Decoder(spec, dtype=dtype, device=torch.device("cpu"))
    for parameter in decoder.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.02)
    return decoder
