"""OPT of Meta (arXiv 2205.01068): a decoder with learnt positions instead of RoPE, LayerNorm and ReLU.

Norms stand before attention and feed-forward. In OPT 350M they normalise the residual stream after each of the two, and
embeddings are smaller than the hidden size.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import base_model_names
from octavo_engine.model.families import reading
from octavo_engine.model.families.fairseq import EPS, fairseq_layers, fairseq_names
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, ModelSpec, NormSpec, PositionSpec


def _read(fields: Fields) -> ModelSpec:
    affine, before = fields.boolean("layer_norm_elementwise_affine", True), fields.boolean("do_layer_norm_before", True)
    norm = NormSpec(EPS, "layer", bias=affine, weight=affine)
    after = LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True)
    layers = fairseq_layers(
        fields, "ffn_dim", reading.norms_before(norm) if before else after, bias=fields.boolean("enable_bias", True)
    )
    hidden = reading.hidden_size(fields)
    size = fields.integer("word_embed_proj_dim", 1, 1 << 20, default=hidden)
    return reading.model(
        fields,
        OPT.architecture,
        layers,
        norm=norm if before and not fields.boolean("_remove_final_layer_norm", False) else None,
        embedding_size=None if size == hidden else size,
        positions=PositionSpec(offset=2),
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        names=fairseq_names("model.decoder", norm="model.decoder.final_layer_norm"),
        stored_names=base_model_names("model.", "decoder."),
    )


OPT = Family(
    architecture="OPTForCausalLM",
    model_type="opt",
    read=_read,
    aliases={"activation_function": "hidden_act"},
    defaults={
        "vocab_size": 50272,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "hidden_act": "relu",
    },
)
