"""Gemma 2 (arXiv 2408.00118) and VaultGemma (arXiv 2510.15001) of Google: Gemma with softcaps and sliding windows.

Attention scores and logits are softcapped, and every second layer has a window. Norms stand before and after attention
and feed-forward; VaultGemma has only those before.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, MLPSpec, ModelSpec

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _read(fields: Fields, architecture: str, *, norms_after: bool) -> ModelSpec:
    norm, bias = reading.rms_norm(fields, weight_offset=1.0), fields.boolean("attention_bias", False)
    reading.refuse_if_true(fields, "use_bidirectional_attention")
    after = norm if norms_after else None
    scale = fields.number("query_pre_attn_scalar", 1e-6, 1e6) ** -0.5
    softcap = reading.softcap(fields, "attn_logit_softcapping")
    feed_forward = MLPSpec(
        intermediate_size=reading.intermediate_size(fields), activation=reading.activation(fields, "hidden_activation")
    )
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields, qkv_bias=bias, output_bias=bias, scale=scale, softcap=softcap, window=window
            ),
            feed_forward=feed_forward,
            norms=LayerNorms(before_mixer=norm, after_mixer=after, before_feed_forward=norm, after_feed_forward=after),
        )
        for window in reading.windows(fields, default=lambda layer: layer % 2 == 0)
    )
    return reading.model(
        fields,
        architecture,
        layers,
        norm=norm,
        embedding_scale=reading.hidden_size(fields) ** 0.5,
        head=HeadSpec(
            fields.boolean("tie_word_embeddings", True), softcap=reading.softcap(fields, "final_logit_softcapping")
        ),
        names=_NAMES,
    )


_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
_NULLABLE = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
GEMMA2: Family = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    read=lambda fields: _read(fields, GEMMA2.architecture, norms_after=True),
    defaults=_DEFAULTS,
    nullable=_NULLABLE,
)
VAULTGEMMA: Family = Family(
    architecture="VaultGemmaForCausalLM",
    model_type="vaultgemma",
    read=lambda fields: _read(fields, VAULTGEMMA.architecture, norms_after=False),
    defaults=_DEFAULTS,
    nullable=_NULLABLE,
)
