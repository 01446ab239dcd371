"""Mistral Large 4: DeepSeek V3 with latents that layers share, learnt RoPE frequencies, and growing queries.

Some layers have no RoPE. The indexer chooses `index_topk` tokens for each query. It is not computed here: `index_topk`
is the longest context, in which it would choose all tokens.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.mistral_large4_names import NAMES, stored_names
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    ExpertGroups,
    HeadSpec,
    LatentAttentionSpec,
    LayerSpec,
    LearntQueryScaling,
    ModelSpec,
    RouterSpec,
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    count, kept = (fields.integer(name, 1, 1 << 16) for name in ("n_group", "topk_group"))
    router = RouterSpec(
        scores="softmax",
        groups=None if count == 1 else ExpertGroups(count=count, kept=kept, best=2),
        renormalize=True,
        sum_offset=1e-20,
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
        in_float32=True,
    )
    shared = mixtures.shared(fields, "n_shared_experts")
    moe = mixtures.experts(fields, router, count="n_routed_experts", shared=shared)
    feed_forward = mixtures.by_type(fields, moe, fields.integer("first_k_dense_replace", 0, 1 << 16))
    layers = tuple(
        LayerSpec(mixer=mixer, feed_forward=feed_forward(layer), norms=reading.norms_before(norm))
        for layer, mixer in enumerate(_mixers(fields))
    )
    spec = reading.model(
        fields,
        MISTRAL_LARGE4.architecture,
        layers,
        norm=norm,
        head=HeadSpec(fields.boolean("tie_word_embeddings", False), softcap=reading.softcap(fields, _CAP)),
        names=NAMES,
        stored_names=stored_names(len(layers), rotates=any(reading.rotates(fields))),
    )
    return replace(spec, max_position=min(spec.max_position, fields.integer("index_topk", 1, 1 << 30)))


def _mixers(fields: Fields) -> list[LatentAttentionSpec]:
    """Return each layer's attention; in those without RoPE all dimensions of a head are plain ones."""
    spec = latent.attention(fields, interleaved=True)
    rope = None if spec.rope is None else replace(spec.rope, learnt=True)
    rotated = replace(spec, rope=rope, norm=reading.rms_norm(fields), query_scaling=LearntQueryScaling())
    unrotated = replace(rotated, rope=None, plain_dim=spec.key_dim, rotary_dim=0)
    rotates = reading.rotates(fields)
    pairs = zip(rotates, _sources(fields, rotates), strict=True)
    return [replace(rotated if each else unrotated, kv_of_layer=source) for each, source in pairs]


def _sources(fields: Fields, rotates: tuple[bool, ...]) -> list[int | None]:
    """Return for each layer the one whose cache it reads; None: its own. As in transformers this is the last one before
    it that others read and that also has RoPE, or has none, as the layer itself."""
    count = reading.num_layers(fields)
    given, last = fields.integers("kv_source_layers") or tuple(range(count)), dict[bool, int]()
    if len(given) != count:
        raise fields.wrong("kv_source_layers", list(given), f"does not name {count} layers")
    for layer, source in enumerate(given):
        if source == layer and layer in given[layer + 1 :]:
            last[rotates[layer]] = layer
        elif source not in (layer, last.get(rotates[layer])):
            why = "is not supported: a layer reads the last one before it that is read, and that rotates as it does"
            raise fields.wrong("kv_source_layers", list(given), why)
    return [None if source == layer else source for layer, source in enumerate(given)]


_CAP = "final_logit_softcapping"
MISTRAL_LARGE4 = Family(
    architecture="MistralLarge4TextForCausalLM",
    model_type="mistral_large4_text",
    read=_read,
    aliases={"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"},
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1048576,
        "intermediate_size": 24576,
        "moe_intermediate_size": 6144,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "no_rope_layer_interval": 4,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 128,
        "index_topk": 2048,
        _CAP: 30.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2048.0,
            "original_max_position_embeddings": 512,
            "attention_factor": 1.0,
        },
        "eos_token_id": 2,
    },
    nullable=frozenset({"q_lora_rank"}),
)
