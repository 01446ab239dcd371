"""SantaCoder and StarCoder of BigCode (arXiv 2305.06161): GPT-2 whose heads share one key and value (`multi_query`).

Weights are stored as [out, in], unlike GPT-2's.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import QKVLayout
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gpt2 import GPT2_ALIASES, GPT2_DEFAULTS, GPT2_NAMES, GPT2_STORED_NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec, PositionSpec


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "add_cross_attention")
    norm = reading.layer_norm(fields, bias=True)
    mixer = reading.attention(fields, grouped=False, rope=None, qkv_bias=True, output_bias=True)
    kv_heads = 1 if fields.boolean("multi_query", True) else mixer.num_heads
    scale = mixer.scale if fields.boolean("scale_attn_weights", True) else 1.0
    layer = LayerSpec(
        mixer=replace(mixer, num_kv_heads=kv_heads, scale=scale),
        feed_forward=reading.plain_mlp(fields, "n_inner", bias=True),
        norms=reading.norms_before(norm),
    )
    return reading.model(
        fields,
        GPT_BIGCODE.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        positions=PositionSpec(),
        stored_names=GPT2_STORED_NAMES,
        names=replace(GPT2_NAMES, transposed=False, qkv_layout=QKVLayout(groups=kv_heads)),
    )


GPT_BIGCODE = Family(
    architecture="GPTBigCodeForCausalLM",
    model_type="gpt_bigcode",
    read=_read,
    aliases=GPT2_ALIASES,
    defaults={**GPT2_DEFAULTS, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
)
