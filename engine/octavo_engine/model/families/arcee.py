"""AFM of Arcee, Jais 2 of Inception and Nemotron of NVIDIA: Llama with a feed-forward that has no gate. Its activation
is squared ReLU. AFM has Llama's RMSNorm; the others have LayerNorm, and Nemotron multiplies with 1 + its weight and
rotates only a half of each head."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, NormSpec


def _read(fields: Fields, architecture: str, norm: NormSpec, *, partial_rotary: bool = False) -> ModelSpec:
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, partial_rotary=partial_rotary, qkv_bias=bias, output_bias=bias),
        feed_forward=reading.mlp(fields, gated=False, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm)


def _read_nemotron(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=True, eps="norm_eps", weight_offset=1.0)
    return _read(fields, NEMOTRON.architecture, norm, partial_rotary=True)


_DEFAULTS = {"hidden_act": "relu2", "rope_theta": 10000.0, "tie_word_embeddings": False}
ARCEE: Family = Family(
    architecture="ArceeForCausalLM",
    model_type="arcee",
    read=lambda fields: _read(fields, ARCEE.architecture, reading.rms_norm(fields)),
    defaults={**_DEFAULTS, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "eos_token_id": 128001},
)
JAIS2: Family = Family(
    architecture="Jais2ForCausalLM",
    model_type="jais2",
    read=lambda fields: _read(fields, JAIS2.architecture, reading.layer_norm(fields, bias=True)),
    defaults={
        **_DEFAULTS,
        "attention_bias": True,
        "mlp_bias": True,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "eos_token_id": 150024,
    },
)
NEMOTRON = Family(
    architecture="NemotronForCausalLM",
    model_type="nemotron",
    read=_read_nemotron,
    defaults={
        **_DEFAULTS,
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
        "eos_token_id": 3,
    },
)
