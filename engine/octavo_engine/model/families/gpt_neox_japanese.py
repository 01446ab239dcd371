"""GPT-NeoX Japanese of ABEJA: GPT-NeoX without biases, and with attention before the feed-forward, not in parallel.

Only the output projection of the last layer's attention has a bias.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gpt_neox import gpt_neox_names
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec

_STORED_NAMES = StoredNames(endings=((".attention.dense_bias", ".attention.dense.bias"),))


def _read(fields: Fields) -> ModelSpec:
    norm, times = reading.layer_norm(fields, bias=True), fields.integer("intermediate_multiple_size", 1, 64)
    layer = LayerSpec(
        mixer=reading.attention(fields, grouped=False, partial_rotary=True, odd_rotary=False),
        feed_forward=reading.mlp(fields, intermediate_size=times * reading.hidden_size(fields), gated=False),
        norms=reading.norms_before(norm),
    )
    *others, last = reading.repeated(fields, layer)
    mixer = reading.attention(fields, grouped=False, partial_rotary=True, odd_rotary=False, output_bias=True)
    return reading.model(
        fields,
        GPT_NEOX_JAPANESE.architecture,
        (*others, replace(last, mixer=mixer)),
        norm=norm,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        names=gpt_neox_names("gpt_neox_japanese", mixer.num_heads),
        stored_names=_STORED_NAMES,
    )


GPT_NEOX_JAPANESE = Family(
    architecture="GPTNeoXJapaneseForCausalLM",
    model_type="gpt_neox_japanese",
    read=_read,
    aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    left_out=frozenset({"partial_rotary_factor", "rope_theta"}),  # transformers reads them under their own names
    defaults={
        "vocab_size": 32000,
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_multiple_size": 4,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "eos_token_id": 31999,
    },
)
