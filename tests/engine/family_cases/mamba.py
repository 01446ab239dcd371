"""Families with Mamba's mixers, and LFM2 with experts, in layers whose sizes two ranks cannot share evenly."""

from __future__ import annotations

from typing import Any

from family_cases.case import UNEVEN, Case

MAMBA2 = {"mamba_n_heads": 9, "mamba_n_groups": 3, "mamba_d_head": "auto", "mamba_d_state": 12}
HYBRID = {**UNEVEN, "rms_norm_eps": 0.01, "mamba_d_conv": 3, "mamba_proj_bias": True}
ALONE = {
    "hidden_size": 72,
    "intermediate_size": 110,
    "num_hidden_layers": 2,
    "state_size": 5,
    "conv_kernel": 3,
    "use_bias": True,
    "layer_norm_epsilon": 0.01,
}
GRANITE_SCALES = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.5,
    "logits_scaling": 1.7,
    "residual_multiplier": 0.6,
}
CASES = {
    "zamba2": Case(
        "Zamba2",
        {
            "num_hidden_layers": 5,
            "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
            "num_mem_blocks": 2,
            "num_key_value_heads": 8,
            "intermediate_size": 90,
            "mamba_d_state": 12,
            "n_mamba_heads": 8,
            "mamba_ngroups": 4,
            "adapter_rank": 6,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
            "add_bias_linear": True,
            "tie_word_embeddings": True,
            "time_step_min": 0.2,
        },
        std=0.1,
    ),
    "bamba": Case(
        "Bamba",
        {
            **HYBRID,
            **MAMBA2,
            "num_hidden_layers": 3,
            "attn_layer_indices": [1],
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_conv_bias": False,
        },
    ),
    "granite-hybrid": Case(
        "GraniteMoeHybrid",
        {
            **HYBRID,
            **MAMBA2,
            **GRANITE_SCALES,
            "mamba_n_groups": 1,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "position_embedding_type": "rope",
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 30,
        },
    ),
    "granite-hybrid-dense": Case(
        "GraniteMoeHybrid",
        {
            **HYBRID,
            **MAMBA2,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "linear_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 46,
            "attention_multiplier": 0.3,
        },
    ),
    "falcon-h1": Case(
        "FalconH1",
        {
            **HYBRID,
            **MAMBA2,
            "mamba_d_ssm": 54,
            "mamba_rms_norm": True,
            "projectors_bias": True,
            "mamba_proj_bias": False,
            "mlp_bias": True,
            "attention_bias": True,
            "lm_head_multiplier": 0.7,
            "embedding_multiplier": 1.3,
            "mlp_multipliers": [1.4, 0.8],
            "key_multiplier": 0.6,
            "attention_out_multiplier": 1.2,
            "attention_in_multiplier": 0.9,
            "ssm_multipliers": [0.8, 1.2, 0.7, 1.3, 0.9],
            "ssm_in_multiplier": 1.1,
            "ssm_out_multiplier": 0.7,
        },
    ),
    "falcon-h1-no-norm": Case("FalconH1", {**HYBRID, **MAMBA2, "mamba_n_groups": 1, "mamba_d_ssm": None}),
    "jamba": Case(
        "Jamba",
        {
            **HYBRID,
            "num_hidden_layers": 4,
            "attn_layer_period": 3,
            "attn_layer_offset": 2,
            "expert_layer_period": 3,
            "expert_layer_offset": 1,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "mamba_d_state": 6,
            "mamba_dt_rank": 7,
            "mamba_conv_bias": False,
        },
    ),
    "mamba": Case("Mamba", {**ALONE, "time_step_rank": 7, "use_conv_bias": False, "tie_word_embeddings": False}),
    "falcon-mamba": Case("FalconMamba", {**ALONE, "mixer_rms_eps": 0.02}),
    "mamba2": Case("Mamba2", {**ALONE, "num_heads": 9, "head_dim": 16, "n_groups": 3}),
    "nemotron-h": Case(
        "NemotronH",
        {
            **UNEVEN,
            "num_hidden_layers": None,
            "layers_block_type": ["mlp", "linear_attention", "linear_attention", "full_attention", "moe", "moe"],
            "head_dim": 8,
            "mamba_num_heads": 9,
            "mamba_head_dim": 6,
            "n_groups": 3,
            "ssm_state_size": 12,
            "conv_kernel": 3,
            "use_bias": True,
            "mlp_bias": True,
            "use_conv_bias": False,
            "mamba_hidden_act": "gelu",
            "time_step_min": 0.4,
            "layer_norm_epsilon": 0.01,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 35,
            "moe_shared_expert_intermediate_size": 46,
            "moe_latent_size": 20,
            "routed_scaling_factor": 1.4,
            "n_group": 3,
            "topk_group": 2,
        },
    ),
    "lfm2-moe": Case(
        "Lfm2Moe",
        {
            **UNEVEN,
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_bias": True,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 35,
            "routed_scaling_factor": 1.3,
            "norm_eps": 0.01,
        },
    ),
}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "MambaForCausalLM": (  # mamba-130m-hf
        {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 24, "time_step_rank": 48},
        129135360,
    ),
    "JambaForCausalLM": (  # Jamba-v0.1
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 65536,
        },
        51570323328,
    ),
}
