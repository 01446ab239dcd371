"""The tensor names of DeepSeek V4's checkpoints, in published files and in those that transformers writes.

Published files omit the prefix `model.`, and name the embedding and the hyper-connections otherwise.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames

_LAYER = "model.layers.{layer}"
_ATTENTION, _EXPERTS = f"{_LAYER}.attn", f"{_LAYER}.ffn"
_MODULES = {
    "self_attn.q_a_proj": "attn.wq_a",
    "self_attn.q_b_proj": "attn.wq_b",
    "self_attn.kv_proj": "attn.wkv",
    "self_attn.o_b_proj": "attn.wo_b",
    "mlp.experts": "ffn.experts",
    "mlp.shared_experts.gate_proj": "ffn.shared_experts.w1",
    "mlp.shared_experts.up_proj": "ffn.shared_experts.w3",
    "mlp.shared_experts.down_proj": "ffn.shared_experts.w2",
    "mlp.gate.e_score_correction_bias": "ffn.gate.bias",
    "mlp.gate.": "ffn.gate.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "self_attn.q_a_norm": "attn.q_norm",
    "self_attn.kv_norm": "attn.norm",
    "self_attn.o_a_proj": "attn.wo_a",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.compressor.indexer.q_b_proj": "attn.indexer.wq_b",
    "self_attn.compressor.indexer.scorer.": "attn.indexer.",
    **{
        f"self_attn.compressor.{there}{end}": f"attn.{here}compressor.{stored}"
        for there, here in (("indexer.", "indexer."), ("", ""))
        for end, stored in (("kv_proj", "wkv"), ("gate_proj", "wgate"), ("kv_norm", "norm"), ("position_bias", "ape"))
    },
    "lm_head.": "head.",
}
"""The names of modules in transformers, which adapters and some files use, and their names in published files."""
_PREFIXES = {"embed.": "embed_tokens.", "norm.": "norm.", "layers.": "layers.", "hc_head_": "hc_head.hc_"}
_CONNECTIONS = {"attn": "attn_hc", "ffn": "ffn_hc"}

NAMES = TensorNames(
    modules=tuple(_MODULES.items()),
    head="head",
    before_mixer=f"{_LAYER}.attn_norm",
    before_feed_forward=f"{_LAYER}.ffn_norm",
    query_down=f"{_ATTENTION}.wq_a",
    query_latent_norm=f"{_ATTENTION}.q_norm",
    query_up=f"{_ATTENTION}.wq_b",
    key=f"{_ATTENTION}.wkv",
    key_norm=f"{_ATTENTION}.norm",
    output=f"{_ATTENTION}.wo_b",
    sinks=f"{_ATTENTION}.attn_sink",
    router=f"{_EXPERTS}.gate",
    correction_bias=f"{_EXPERTS}.gate.bias",
    expert_table=f"{_EXPERTS}.gate.tid2eid",
    expert_gate=f"{_EXPERTS}.experts.{{expert}}.w1",
    expert_up=f"{_EXPERTS}.experts.{{expert}}.w3",
    expert_down=f"{_EXPERTS}.experts.{{expert}}.w2",
    shared_gate=f"{_EXPERTS}.shared_experts.w1",
    shared_up=f"{_EXPERTS}.shared_experts.w3",
    shared_down=f"{_EXPERTS}.shared_experts.w2",
)
STORED_NAMES = StoredNames(
    renamed=tuple((there, f"model.{here}") for there, here in _PREFIXES.items()),
    endings=tuple(
        (f"hc_{part}_{end}", f"{module}.{end}")
        for part, module in _CONNECTIONS.items()
        for end in ("fn", "base", "scale")
    ),
)
