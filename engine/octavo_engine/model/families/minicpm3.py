"""MiniCPM3 (arXiv 2404.06395) and Youtu-LLM: Llama with DeepSeek's latent attention.

MiniCPM3 scales embeddings, residuals and logits.
"""

from __future__ import annotations

import math

from octavo_engine.model.families import latent, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec


def _read_minicpm3(fields: Fields) -> ModelSpec:
    norm, count, hidden = reading.rms_norm(fields), reading.num_layers(fields), reading.hidden_size(fields)
    depth = fields.number("scale_depth", 1e-6, 1e6, default=math.sqrt(count))
    bias = fields.boolean("mlp_bias", False)
    layer = LayerSpec(
        mixer=latent.attention(fields, interleaved=False),
        feed_forward=reading.mlp(fields, bias=bias, output_bias=bias),
        norms=reading.norms_before(norm),
        residual_scale=depth / math.sqrt(count),
    )
    width = fields.integer("dim_model_base", 1, 1 << 20, default=hidden)
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), scale=width / hidden)
    scale = reading.scale(fields, "scale_emb")
    layers = reading.repeated(fields, layer)
    return reading.model(fields, MINICPM3.architecture, layers, norm=norm, head=head, embedding_scale=scale)


def _read_youtu(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layer = LayerSpec(
        mixer=latent.attention(fields, interleaved=fields.boolean("rope_interleave", True)),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True))
    return reading.model(fields, YOUTU.architecture, reading.repeated(fields, layer), norm=norm, head=head)


MINICPM3 = Family(
    architecture="MiniCPM3ForCausalLM",
    model_type="minicpm3",
    read=_read_minicpm3,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
        "eos_token_id": 2,
    },
    nullable=frozenset({"q_lora_rank", "scale_depth", "dim_model_base"}),
)
YOUTU = Family(
    architecture="YoutuForCausalLM",
    model_type="youtu",
    read=_read_youtu,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "eos_token_id": 128001,
    },
    nullable=frozenset({"q_lora_rank"}),
)
