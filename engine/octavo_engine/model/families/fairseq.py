"""Models trained with fairseq: XGLM of Meta (arXiv 2112.10668), BioGPT of Microsoft (2210.10341), and OPT (opt.py).

They are decoders with learnt or sinusoidal positions, of which position 0 has row 2 of the table, instead of RoPE.
Their LayerNorms have PyTorch's default epsilon, whatever config.json says.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, NormSpec, PositionSpec

EPS = 1e-5


def fairseq_names(decoder: str, norm: str, head: str = "lm_head") -> TensorNames:
    """Return the tensor names of a decoder whose prefix is `decoder`."""
    layer = f"{decoder}.layers.{{layer}}"
    return TensorNames(
        embedding=f"{decoder}.embed_tokens",
        positions=f"{decoder}.embed_positions",
        embedding_in=f"{decoder}.project_in",
        embedding_out=f"{decoder}.project_out",
        before_mixer=f"{layer}.self_attn_layer_norm",
        after_mixer=f"{layer}.self_attn_layer_norm",
        before_feed_forward=f"{layer}.final_layer_norm",
        after_feed_forward=f"{layer}.final_layer_norm",
        query=f"{layer}.self_attn.q_proj",
        key=f"{layer}.self_attn.k_proj",
        value=f"{layer}.self_attn.v_proj",
        output=f"{layer}.self_attn.out_proj",
        attention=f"{layer}.self_attn",
        up=f"{layer}.fc1",
        down=f"{layer}.fc2",
        norm=norm,
        head=head,
    )


def fairseq_layers(
    fields: Fields, width: str, norms: LayerNorms, *, bias: bool, feed_forward_bias: bool | None = None
) -> tuple[LayerSpec, ...]:
    """Return equal layers; the field `width` is the intermediate size, `feed_forward_bias` by default `bias`."""
    mixer = reading.attention(fields, grouped=False, rope=None, qkv_bias=bias, output_bias=bias)
    mlp = reading.plain_mlp(fields, width, bias=bias if feed_forward_bias is None else feed_forward_bias)
    layer = LayerSpec(mixer=mixer, feed_forward=mlp, norms=norms)
    return reading.repeated(fields, layer)


def _read_scaled(fields: Fields, family: Family, width: str, positions: PositionSpec, names: TensorNames) -> ModelSpec:
    """Return the spec of XGLM or BioGPT, whose embeddings may be scaled by the root of the hidden size."""
    norm = NormSpec(EPS, "layer", bias=True)
    return reading.model(
        fields,
        family.architecture,
        fairseq_layers(fields, width, reading.norms_before(norm), bias=True),
        norm=norm,
        embedding_scale=reading.hidden_size(fields) ** 0.5 if fields.boolean("scale_embedding", True) else 1.0,
        positions=positions,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        names=names,
    )


def _read_xglm(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "add_cross_attention")
    padding = fields.integer("pad_token_id", 0, 1 << 26) if fields.has("pad_token_id") else None
    positions = PositionSpec(offset=2, sinusoidal=True, zero_row=padding)
    return _read_scaled(fields, XGLM, "ffn_dim", positions, fairseq_names("model", norm="model.layer_norm"))


def _read_biogpt(fields: Fields) -> ModelSpec:
    names = fairseq_names("biogpt", norm="biogpt.layer_norm", head="output_projection")
    return _read_scaled(fields, BIOGPT, "intermediate_size", PositionSpec(offset=2), names)


_DEFAULTS = {"tie_word_embeddings": True, "eos_token_id": 2, "hidden_size": 1024, "num_hidden_layers": 24}
XGLM = Family(
    architecture="XGLMForCausalLM",
    model_type="xglm",
    read=_read_xglm,
    aliases={
        "d_model": "hidden_size",
        "num_layers": "num_hidden_layers",
        "attention_heads": "num_attention_heads",
        "activation_function": "hidden_act",
    },
    defaults={
        **_DEFAULTS,
        "vocab_size": 256008,
        "ffn_dim": 4096,
        "max_position_embeddings": 2048,
        "num_attention_heads": 16,
        "hidden_act": "gelu",
        "pad_token_id": 1,
    },
    nullable=frozenset({"pad_token_id"}),
)
BIOGPT = Family(
    architecture="BioGptForCausalLM",
    model_type="biogpt",
    read=_read_biogpt,
    defaults={
        **_DEFAULTS,
        "vocab_size": 42384,
        "intermediate_size": 4096,
        "max_position_embeddings": 1024,
        "num_attention_heads": 16,
        "hidden_act": "gelu",
    },
)
