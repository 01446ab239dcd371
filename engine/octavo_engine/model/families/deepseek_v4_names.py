"""The tensor names of DeepSeek V4's checkpoints, in published files and in those that transformers writes.

Published files omit the prefix `model.`, and name the embedding and the hyper-connections otherwise.
"""

from __future__ import annotations

from octavo_engine.model.names import StoredNames, TensorNames

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
}
"""The names of modules in transformers, which adapters use, and the same modules' names in files."""
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
