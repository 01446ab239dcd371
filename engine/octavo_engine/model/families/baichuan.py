"""Baichuan 1 and 2 (arXiv 2309.10305): Llama with query, key and value in one tensor.

Models of 7B have RoPE, those of 13B ALiBi; their files do not say which. The rows of Baichuan 2's head are divided by
their lengths, and its vocabulary alone tells it from Baichuan 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.spec import ALiBiSpec, HeadSpec, LayerSpec, ModelSpec

_PACK = "model.layers.{layer}.self_attn.W_pack"
_NAMES = TensorNames(query=_PACK, key=_PACK, value=_PACK)
_HIDDEN_SIZE_OF_7B = 4096
_VOCABULARY_OF_2 = 125696


def _read(fields: Fields, architecture: str, *, rotates: bool) -> ModelSpec:
    norm = reading.rms_norm(fields)
    positions: dict[str, Any] = {} if rotates else {"rope": None, "alibi": ALiBiSpec()}
    layer = LayerSpec(
        mixer=reading.attention(fields, grouped=False, **positions),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    head = HeadSpec(
        tied=fields.boolean("tie_word_embeddings", False), unit_rows=fields.values.get("vocab_size") == _VOCABULARY_OF_2
    )
    spec = reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm, head=head, names=_NAMES)
    stored = spec.quantization if spec.quantization is not None and spec.quantization.head else None
    if head.unit_rows and (head.tied or (stored is not None and stored.method(_NAMES.head) is not UNQUANTIZED)):
        raise fields.wrong(
            "vocab_size", _VOCABULARY_OF_2, "is Baichuan 2's, whose head must be neither tied nor quantized"
        )
    return spec


BAICHUAN: Family = Family(
    architecture="BaichuanForCausalLM",
    model_type="baichuan",
    read=lambda fields: _read(fields, BAICHUAN.architecture, rotates=reading.hidden_size(fields) == _HIDDEN_SIZE_OF_7B),
    aliases={"model_max_length": "max_position_embeddings"},
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
BAICHUAN_7B: Family = replace(
    BAICHUAN,
    architecture="BaiChuanForCausalLM",
    read=lambda fields: _read(fields, BAICHUAN_7B.architecture, rotates=True),
)
"""The class of Baichuan 1 of 7B."""
