"""ModernBERT as a decoder (Ettin, arXiv 2507.11412): windows in two layers of three, and BERT's transform before the
head."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import TensorNames
from octavo_engine.model.spec import HeadSpec, HeadTransformSpec, LayerNorms, LayerSpec, ModelSpec

_LAYER = "model.layers.{layer}"
_NAMES = TensorNames(
    embedding="model.embeddings.tok_embeddings",
    embedding_norm="model.embeddings.norm",
    before_mixer=f"{_LAYER}.attn_norm",
    attention=f"{_LAYER}.attn",
    query=f"{_LAYER}.attn.q_proj",
    key=f"{_LAYER}.attn.k_proj",
    value=f"{_LAYER}.attn.v_proj",
    output=f"{_LAYER}.attn.Wo",
    before_feed_forward=f"{_LAYER}.mlp_norm",
    gate=f"{_LAYER}.mlp.Wi",
    up=f"{_LAYER}.mlp.Wi",
    down=f"{_LAYER}.mlp.Wo",
    norm="model.final_norm",
    head="decoder",
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=fields.boolean("norm_bias", False), eps="norm_eps")
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    fields = Fields(fields.origin, {**fields.values, "sliding_window": _window(fields)}, read=fields.read)
    period = fields.integer("global_attn_every_n_layers", 1, 4096)
    mlp = reading.mlp(
        fields, activation=reading.activation(fields, "hidden_activation"), bias=mlp_bias, output_bias=mlp_bias
    )
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                layer_type=reading.layer_type(window),
                grouped=False,
                qkv_bias=bias,
                output_bias=bias,
                window=window,
            ),
            feed_forward=mlp,
            norms=LayerNorms(before_mixer=norm if layer else None, before_feed_forward=norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda layer: layer % period != 0))
    )
    transform = HeadTransformSpec(
        bias=fields.boolean("classifier_bias", False),
        activation=reading.activation(fields, "classifier_activation"),
        norm=norm,
    )
    tied = fields.boolean("tie_word_embeddings", True)
    head = HeadSpec(tied, bias=fields.boolean("decoder_bias", True), transform=transform)
    architecture = MODERNBERT_DECODER.architecture
    return reading.model(fields, architecture, layers, norm=norm, embedding_norm=norm, head=head, names=_NAMES)


def _window(fields: Fields) -> int:
    """`sliding_window`, or half of `local_attention`, which counts to both sides as in ModernBERT."""
    if fields.has("sliding_window"):
        return fields.integer("sliding_window", 1, 1 << 30)
    return fields.integer("local_attention", 2, 1 << 30) // 2


MODERNBERT_DECODER = Family(
    architecture="ModernBertDecoderForCausalLM",
    model_type="modernbert-decoder",
    read=_read,
    aliases={"global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"},
    defaults={
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "rope_theta": 160000.0,
        "rope_local_base_freq": 10000.0,
        "max_position_embeddings": 8192,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "classifier_activation": "gelu",
        "vocab_size": 50368,
        "eos_token_id": 50282,
    },
)
