"""Ministral 8B and Ministral 3 of Mistral: Llama with sliding windows, or with queries that grow with their position.

Ministral 8B has a window in some layers. Ministral 3 multiplies queries with a factor that grows with the logarithm of
their position.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QueryScaling


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, window=window),
            feed_forward=reading.mlp(fields),
            norms=reading.norms_before(norm),
        )
        for window in reading.windows(fields, default=lambda _: fields.has("sliding_window"))
    )
    return reading.model(fields, MINISTRAL.architecture, layers, norm=norm)


def _read_3(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, window=reading.window(fields), query_scaling=query_scaling(fields)),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, MINISTRAL3.architecture, reading.repeated(fields, layer), norm=norm)


def query_scaling(fields: Fields) -> QueryScaling:
    """Read how queries grow with their position, which stands among the fields of RoPE."""
    rope = fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or Fields(fields.origin, {})
    period = rope.integer("original_max_position_embeddings", 1, 1 << 30)
    return QueryScaling(rope.number("llama_4_scaling_beta", 0, 1e3), period)


_DEFAULTS = {"num_key_value_heads": 8, "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 2}
MINISTRAL = Family(
    architecture="MinistralForCausalLM",
    model_type="ministral",
    read=_read,
    defaults={
        **_DEFAULTS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    nullable=frozenset({"sliding_window"}),
)
MINISTRAL3 = Family(
    architecture="Ministral3ForCausalLM",
    model_type="ministral3",
    read=_read_3,
    defaults={
        **_DEFAULTS,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 262144,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
)
