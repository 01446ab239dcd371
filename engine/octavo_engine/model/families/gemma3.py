"""Gemma 3 of Google (arXiv 2503.19786): Gemma 2 with QK norm in place of the softcap of attention scores.

Five of six layers have a sliding window, and a RoPE base of their own. With `use_bidirectional_attention`
(EmbeddingGemma) a token also sees those after it.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, QKNormSpec

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _read(fields: Fields) -> ModelSpec:
    both_ways = fields.boolean("use_bidirectional_attention", False)
    norm, bias = reading.rms_norm(fields, weight_offset=1.0), fields.boolean("attention_bias", False)
    period = fields.integer("sliding_window_pattern", 1, 4096)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                layer_type=reading.layer_type(window),
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=QKNormSpec(norm),
                scale=fields.number("query_pre_attn_scalar", 1e-6, 1e6) ** -0.5,
                causal=not both_ways,
                window=window // 2 + 1 if window is not None and both_ways else window,
            ),
            feed_forward=reading.mlp(fields, activation=reading.activation(fields, "hidden_activation")),
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
        )
        for window in reading.windows(fields, default=lambda layer: (layer + 1) % period != 0)
    )
    head = HeadSpec(
        fields.boolean("tie_word_embeddings", True), softcap=reading.softcap(fields, "final_logit_softcapping")
    )
    scale = reading.hidden_size(fields) ** 0.5
    return reading.model(fields, GEMMA3.architecture, layers, norm=norm, embedding_scale=scale, head=head, names=_NAMES)


GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    read=_read,
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
        "eos_token_id": 1,
    },
    without_effect=frozenset({"attn_logit_softcapping"}),
)
