"""Dense ERNIE 4.5 of Baidu: Llama whose RoPE rotates pairs of neighbouring dimensions.

The ERNIE 4.5 inside PaddleOCR-VL rotates Llama's pairs.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec


def read_pairs(
    fields: Fields, name: str, *, qkv_bias: bool, bias: bool, mlp_bias: bool, tied: bool, interleaved: bool = True
) -> ModelSpec:
    """Read Llama with these biases as `name`; `interleaved`: RoPE rotates pairs of neighbouring dimensions."""
    norm = reading.rms_norm(fields)
    attention = reading.attention(fields, qkv_bias=qkv_bias, output_bias=bias)
    layer = LayerSpec(
        mixer=reading.with_rope(attention, interleaved=interleaved),
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", tied))
    return reading.model(fields, name, reading.repeated(fields, layer), norm=norm, head=head)


def _read_ernie(fields: Fields, architecture: str, *, interleaved: bool) -> ModelSpec:
    bias = fields.boolean("use_bias", False)
    biases = {"qkv_bias": bias, "bias": bias, "mlp_bias": bias}
    return read_pairs(fields, architecture, **biases, tied=True, interleaved=interleaved)


_ERNIE_DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "eos_token_id": 2,
}
ERNIE4_5: Family = Family(
    architecture="Ernie4_5ForCausalLM",
    model_type="ernie4_5",
    read=lambda fields: _read_ernie(fields, ERNIE4_5.architecture, interleaved=True),
    defaults=_ERNIE_DEFAULTS,
)
PADDLE_OCR: Family = Family(
    architecture="PaddleOCRTextForCausalLM",
    model_type="paddleocr_vl_text",
    read=lambda fields: _read_ernie(fields, PADDLE_OCR.architecture, interleaved=False),
    defaults=_ERNIE_DEFAULTS,
)
