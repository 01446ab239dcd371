"""DeepSeek V4: attention to a window and to compressed keys, hyper-connections (a residual stream of several vectors
for each token), and experts, which in the first layers a table chooses by the token."""

from __future__ import annotations

from octavo_engine.model.families import compressed, reading
from octavo_engine.model.families.deepseek_v4_experts import experts
from octavo_engine.model.families.deepseek_v4_names import NAMES, STORED_NAMES
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, MixedConnectionsSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    connections = MixedConnectionsSpec(
        count=fields.integer("hc_mult", 1, 64),
        norm_eps=norm.eps,
        iterations=fields.integer("hc_sinkhorn_iters", 1, 200),
        eps=fields.number("hc_eps", 0, 1),
    )
    layers = tuple(
        LayerSpec(mixer=mixer, feed_forward=part, norms=reading.norms_before(norm), connections=connections)
        for mixer, part in zip(compressed.attentions(fields), experts(fields), strict=True)
    )
    return reading.model(fields, DEEPSEEK_V4.architecture, layers, norm=norm, names=NAMES, stored_names=STORED_NAMES)


DEEPSEEK_V4: Family = Family(
    architecture="DeepseekV4ForCausalLM",
    model_type="deepseek_v4",
    read=_read,
    defaults={
        "num_hidden_layers": 43,
        "num_attention_heads": 64,
        "head_dim": 512,
        "q_lora_rank": 1024,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus",
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "max_position_embeddings": 1 << 20,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "sliding_window": 128,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "eos_token_id": 1,
    },
)
