"""The language model of Aria (arXiv 2410.05993): Llama with experts in every layer, and shared experts beside them.

Two tensors hold all experts of a layer, each expert transposed. The routed experts are computed with SiLU whatever
`hidden_act` says, as in transformers.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, RouterSpec

_MLP = "model.layers.{layer}.mlp"
_NAMES = TensorNames(
    modules=((".experts.gate_up_proj", ".experts.fc1.weight"), (".experts.down_proj", ".experts.fc2.weight")),
    router=f"{_MLP}.router",
    expert_gate=f"{_MLP}.experts.fc1.weight",
    expert_up=f"{_MLP}.experts.fc1.weight",
    expert_down=f"{_MLP}.experts.fc2.weight",
    expert_layout="columns",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    biases = dict.fromkeys(("bias", "output_bias"), fields.boolean("mlp_bias", False))
    shared = mixtures.shared(fields, "moe_num_shared_experts", "intermediate_size", **biases)
    router, sizes = RouterSpec(), {"count": "moe_num_experts", "top_k": "moe_topk", "size": "intermediate_size"}
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
        feed_forward=mixtures.experts(fields, router, **sizes, shared=shared, activation="silu"),  # not `hidden_act`
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, ARIA_TEXT.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


ARIA_TEXT = Family(
    architecture="AriaTextForCausalLM",
    model_type="aria_text",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "intermediate_size": 4096,
        "moe_num_experts": 8,
        "moe_topk": 2,
        "moe_num_shared_experts": 2,
        "eos_token_id": 2,
    },
)
