"""Families whose class is not in transformers, but in the repositories of their models or in a later version.

The logits are those of a class with the same mathematics, whose fields and tensors are renamed as published files have
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import reference_model, save
from rank_logits import TOKENS, logits_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import AttentionSpec, MLPSpec, ModelSpec

Tensors = dict[str, Tensor]
SIZES = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512}
PARTS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Own:
    """A family: the class of transformers that stands for it, the fields of its files, and its tensors."""

    like: str
    fields: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the configuration of transformers' class."""
    names: tuple[tuple[str, str], ...] = ()
    """Parts of names, and what published files have for them."""
    join: Callable[[list[Tensor]], Tensor] | None = None
    """Makes one tensor of query, key and value."""
    prepare: Callable[[Any], None] = lambda model: None
    """Changes the model of transformers."""
    added: Callable[[Tensors], Tensors] = lambda tensors: {}
    """Makes tensors, from those of published files, that take their place or stand beside them."""


def in_groups(parts: list[Tensor]) -> Tensor:
    """Two groups of four query heads, a key and a value, of 8 rows each."""
    query, key, value = (part.view(2, -1, 8, *part.shape[1:]) for part in parts)
    return torch.cat((query, key, value), dim=1).reshape(-1, *parts[0].shape[1:])


def without_parts(model: Any) -> None:
    """No attention in the layer 1, no feed-forward in the layer 2."""
    for name, parameter in model.named_parameters():
        if name in ("model.layers.1.self_attn.o_proj.weight", "model.layers.2.mlp.down_proj.weight"):
            parameter.data.zero_()


def with_half_shared(model: Any) -> None:
    """A shared expert whose result Qwen's gate always halves."""
    for name, parameter in model.named_parameters():
        if "shared_expert_gate" in name:
            parameter.data.zero_()


def with_image_rows(tensors: Tensors) -> Tensors:
    """The embedding, followed by rows for pieces of images."""
    return {name: torch.cat((each, torch.randn(9, 64))) for name, each in tensors.items() if "embed_tokens" in name}


def with_images(tensors: Tensors) -> Tensors:
    """The embedding with such rows, and a tensor of the model that makes the pieces."""
    return {**with_image_rows(tensors), "model.vision_tokenizer.scale": torch.ones(4)}


DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_OF_64 = {**LLAMA3, "original_max_position_embeddings": 64}
APERTUS_ROPE = {**LLAMA3, "original_max_position_embeddings": 8192}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
LATENTS = {"kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.7}
LING = (
    (".self_attn.o_proj.", ".attention.dense."),
    (".self_attn.", ".attention."),
    ("embed_tokens", "word_embeddings"),
    ("q_norm", "query_layernorm"),
    ("k_norm", "key_layernorm"),
    ("e_score_correction_bias", "expert_bias"),
    (".shared_expert.", ".shared_experts."),
)
BLOCKS = [
    {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 5.0, "no_op": False}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 5.5, "no_op": False}},
    {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": None, "no_op": True}},
]
OWN = {
    "MiniCPMForCausalLM": Own(
        "Granite",
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16, "tie_word_embeddings": True},
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 / math.sqrt(3),
            "logits_scaling": 4.0,
            "attention_multiplier": 8**-0.5,
            "tie_word_embeddings": True,
        },
    ),
    "InternLM2ForCausalLM": Own(
        "Llama",
        {"bias": True, "rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {
            "attention_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5e4, "factor": 2.0},
        },
        (
            ("self_attn.qkv", "attention.wqkv"),
            ("self_attn.o_proj", "attention.wo"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("embed_tokens", "tok_embeddings"),
            ("lm_head", "output"),
        ),
        in_groups,
    ),
    "ExaoneForCausalLM": Own(
        "Llama",
        {
            "num_layers": 3,
            "num_hidden_layers": ...,
            "activation_function": "silu",
            "layer_norm_epsilon": 0.01,
            "rope_theta": 5e4,
            "rope_scaling": LLAMA3_OF_64,
        },
        {"rms_norm_eps": 0.01, "rope_parameters": {**LLAMA3_OF_64, "rope_theta": 5e4}},
        (
            ("model.layers", "transformer.h"),
            ("self_attn.o_proj", "self_attn.out_proj"),
            ("self_attn", "attn.attention"),
            ("gate_proj", "c_fc_0"),
            ("up_proj", "c_fc_1"),
            ("down_proj", "c_proj"),
            ("input_layernorm", "ln_1"),
            ("post_attention_layernorm", "ln_2"),
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
        ),
    ),
    "BailingMoeForCausalLM": Own(
        "Qwen2Moe",
        {**EXPERTS, "num_shared_experts": 2, "norm_topk_prob": True, "use_qkv_bias": True, "rope_theta": 6e5},
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 32,
            "norm_topk_prob": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 6e5},
        },
        ((".self_attn.qkv.", ".attention.query_key_value."), *LING),
        torch.cat,
        with_half_shared,
    ),
    "BailingMoeV2ForCausalLM": Own(
        "Glm4Moe",
        {
            **EXPERTS,
            "num_shared_experts": 1,
            "moe_shared_expert_intermediate_size": 16,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "score_function": "sigmoid",
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
        },
        {
            **EXPERTS,
            "num_experts": ...,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 6e5, "partial_rotary_factor": 0.5},
        },
        ((".self_attn.qkv.", ".attention.query_key_value."), *LING),
        torch.cat,
    ),
    "SarvamMoEForCausalLM": Own(
        "Glm4Moe",
        {**EXPERTS, "num_shared_experts": 1, "n_group": 4, "topk_group": 2, "use_qkv_bias": True, "rope_theta": 500.0},
        {
            **EXPERTS,
            "num_experts": ...,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        },
        ((".self_attn.qkv.", ".attention.query_key_value."), *LING),
        torch.cat,
    ),
    "SarvamMLAForCausalLM": Own(
        "DeepseekV3",
        {
            **EXPERTS,
            **LATENTS,
            "num_shared_experts": 2,
            "head_dim": 32,
            "q_head_dim": 20,
            "rope_scaling": {**YARN, "type": "deepseek_yarn"},
            "rope_theta": 500.0,
        },
        {
            **EXPERTS,
            **LATENTS,
            **dict.fromkeys(("num_experts", "head_dim"), ...),
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 8,
            "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 500.0},
        },
    ),
    "InternLMForCausalLM": Own(
        "Llama",
        {"num_key_value_heads": ..., "bias": True, "rotary": {"base": 5e4, "type": "dynamic"}},
        {"num_key_value_heads": 8, "attention_bias": True, "rope_theta": 5e4},
    ),
    "Apertus1p5TextForCausalLM": Own(
        "Apertus",
        {"vocab_size": 140, "output_vocab_size": 131, "rope_theta": 500.0, "rope_scaling": LLAMA3_OF_64},
        {"rope_parameters": {**LLAMA3_OF_64, "rope_theta": 500.0}},
        added=with_image_rows,
    ),
    "Apertus1p5ForConditionalGeneration": Own(
        "Apertus",
        {"text_config": {**SIZES, **HEADS, "vocab_size": 140, "output_vocab_size": 131, "rope_theta": 500.0}},
        {"rope_parameters": {**APERTUS_ROPE, "rope_theta": 500.0}},
        (("model.", "model.language_model."),),
        added=with_images,
    ),
    "PanguEmbeddedForCausalLM": Own("Llama", {"bias": True}, {"attention_bias": True}),
    "StableLMEpochForCausalLM": Own(
        "StableLm",
        {"rope_pct": 0.5, "norm_eps": 0.01, "use_qkv_bias": True},
        {
            "layer_norm_eps": 0.01,
            "use_qkv_bias": True,
            "rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "MiniMaxM1ForCausalLM": Own(
        "MiniMax",
        {
            "attn_type_list": [0, 1, 0],
            "postnorm": True,
            "rotary_dim": 8,
            "rope_theta": 500.0,
            "num_local_experts": 5,
            "layernorm_full_attention_alpha": 1.7,
            "layernorm_linear_attention_alpha": 1.3,
            "layernorm_mlp_alpha": 1.4,
            "layernorm_mlp_beta": 0.6,
        },
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "num_local_experts": 5,
            "full_attn_alpha_factor": 1.7,
            "linear_attn_alpha_factor": 1.3,
            "mlp_alpha_factor": 1.4,
            "mlp_beta_factor": 0.6,
        },
    ),
    "AquilaModel": Own("Llama", {}),
    "LLaMAForCausalLM": Own("Llama", {}),
    "BaiChuanForCausalLM": Own(
        "Llama",
        {"num_key_value_heads": ..., "head_dim": ...},
        {"num_key_value_heads": 8},
        (("self_attn.qkv", "self_attn.W_pack"),),
        torch.cat,
    ),
    "RWForCausalLM": Own(
        "Falcon",
        {
            **dict.fromkeys((*SIZES, *HEADS), ...),
            "vocab_size": 131,
            "hidden_size": 64,
            "n_layer": 3,
            "n_head": 8,
            "n_head_kv": 2,
            "layer_norm_epsilon": 0.01,
            "parallel_attn": True,
            "alibi": False,
        },
        {"head_dim": ..., "new_decoder_architecture": True, "num_kv_heads": 2, "layer_norm_epsilon": 0.01}
        | {"ffn_hidden_size": 256, "max_position_embeddings": 2048},
    ),
    "XverseForCausalLM": Own("Llama", {"num_key_value_heads": ..., "pad_token_id": 1}, {"num_key_value_heads": 8}),
    "OrionForCausalLM": Own(
        "StableLm",
        {"attention_bias": False, "rms_norm_eps": 0.01},
        {"layer_norm_eps": 0.01, "rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 1.0}},
    ),
    "QWenLMHeadModel": Own(
        "Qwen2",
        {
            **dict.fromkeys(("num_key_value_heads", "head_dim", "max_position_embeddings"), ...),
            "kv_channels": 8,
            "seq_length": 512,
            "intermediate_size": 192,
            "layer_norm_epsilon": 0.01,
            "rotary_emb_base": 500.0,
            "use_dynamic_ntk": True,
            "use_logn_attn": True,
            "no_bias": True,
        },
        {"num_key_value_heads": 8, "rms_norm_eps": 0.01, "rope_theta": 500.0},
        (
            ("model.layers", "transformer.h"),
            ("self_attn.qkv", "attn.c_attn"),
            ("self_attn.o_proj", "attn.c_proj"),
            ("gate_proj", "w2"),
            ("up_proj", "w1"),
            ("down_proj", "c_proj"),
            ("input_layernorm", "ln_1"),
            ("post_attention_layernorm", "ln_2"),
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
        ),
        torch.cat,
    ),
    "ChatGLMModel": Own(
        "Glm",
        {
            **dict.fromkeys((*SIZES, *HEADS), ...),
            "padded_vocab_size": 131,
            "hidden_size": 64,
            "num_layers": 3,
            "num_attention_heads": 8,
            "ffn_hidden_size": 96,
            "kv_channels": 8,
            "seq_length": 512,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "layernorm_epsilon": 0.01,
            "add_qkv_bias": True,
            "rope_ratio": 500,
            "original_rope": True,
            "apply_residual_connection_post_layernorm": False,
        },
        {
            "attention_bias": True,
            "pad_token_id": 0,
            "rms_norm_eps": 0.01,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        },
        (
            ("model.embed_tokens", "transformer.embedding.word_embeddings"),
            ("model.layers", "transformer.encoder.layers"),
            ("model.norm", "transformer.encoder.final_layernorm"),
            ("lm_head", "transformer.output_layer"),
            ("self_attn.qkv", "self_attention.query_key_value"),
            ("self_attn.o_proj", "self_attention.dense"),
            ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
            ("mlp.down_proj", "mlp.dense_4h_to_h"),
        ),
        torch.cat,
    ),
    "DeepseekForCausalLM": Own(
        "Qwen2Moe",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "qkv_bias": False,
        },
        ((".shared_expert.", ".shared_experts."),),
        prepare=with_half_shared,
    ),
    "DeciLMForCausalLM": Own(
        "Llama",
        {"block_configs": BLOCKS, "intermediate_size": None, "num_key_value_heads": None},
        {"intermediate_size": 256},
        prepare=without_parts,
    ),
}


def published(tensors: Tensors, own: Own) -> Tensors:
    """The tensors as the repositories of the family's models have them."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        module, _, end = name.rpartition(".")
        if own.join is not None and module.endswith(PARTS):
            if module.endswith("q_proj"):
                parts = [tensors[f"{module.removesuffix('q_proj')}{part}.{end}"] for part in PARTS]
                found[f"{module.removesuffix('q_proj')}qkv.{end}"] = own.join(parts)
        elif "shared_expert_gate" not in name:
            found[name] = tensor * 0.5 if ".shared_expert.down_proj" in name else tensor
    renamed: Tensors = {}
    for name, tensor in found.items():
        for there, here in own.names:
            name = name.replace(there, here)  # noqa: PLW2901
        renamed[name] = tensor.contiguous()
    return {**renamed, **own.added(renamed)}


def pair(architecture: str, folder: Path) -> tuple[Any, ModelFiles]:
    """The model of transformers, and its numbers as a checkpoint of the family."""
    own = OWN[architecture]
    model = reference_model(own.like, **{**SIZES, **HEADS, **own.changes})
    own.prepare(model)
    tensors = published(load_file(save(model, folder) / "model.safetensors"), own)
    if architecture == "DeciLMForCausalLM":
        gone = ("layers.1.self_attn.", "layers.1.input_layernorm", "layers.2.mlp.", "layers.2.post_attention_layernorm")
        tensors = {name: each for name, each in tensors.items() if not any(part in name for part in gone)}
    save_file(tensors, folder / "model.safetensors")
    config = {**SIZES, **HEADS, **own.fields, "architectures": [architecture], "torch_dtype": "float32"}
    write(folder, config)
    return model, ModelFiles("test", directory=folder)


def write(folder: Path, config: dict[str, Any]) -> None:
    given = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(given))


@pytest.mark.parametrize("architecture", OWN)
def test_logits_are_those_of_the_same_mathematics(architecture: str, tmp_path: Path) -> None:
    model, files = pair(architecture, tmp_path)
    decoder = load_model(files, read_spec(files), torch.device("cpu"), torch.float32, lambda *_: None)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert expected.argmax(-1).unique().numel() > 2
    torch.testing.assert_close(logits_of(decoder), expected, rtol=1e-4, atol=1e-4)


def test_half_of_each_head_of_minimax_text_01_is_rotated(tmp_path: Path) -> None:
    """As in its published files; transformers' class rotates all of it."""
    [_, layer, _] = spec_of(tmp_path, "MiniMaxM1ForCausalLM", rotary_dim=4).layers
    assert isinstance(layer.mixer, AttentionSpec)
    assert layer.mixer.rope is not None and layer.mixer.rope.rotary_dim == 4


def spec_of(folder: Path, architecture: str, **fields: Any) -> ModelSpec:
    write(folder, {**SIZES, **HEADS, **OWN[architecture].fields, **fields, "architectures": [architecture]})
    return read_spec(ModelFiles("test", directory=folder))


WITHIN = {
    "ExaoneForCausalLM": (
        "LlamaForCausalLM",
        "exaone",
        {"num_hidden_layers": 3, "num_layers": ..., "hidden_act": "silu", "activation_function": ...}
        | {"rms_norm_eps": 0.01, "layer_norm_epsilon": ..., "attention_bias": False, "mlp_bias": False},
    ),
    "SarvamMoEForCausalLM": (
        "Glm4MoeForCausalLM",
        "sarvam_moe",
        {"n_routed_experts": 8, "num_experts": ..., "n_shared_experts": 1, "num_shared_experts": ...}
        | {"attention_bias": True, "use_qkv_bias": ...},
    ),
    "SarvamMLAForCausalLM": (
        "DeepseekV3ForCausalLM",
        "sarvam_mla",
        {"n_routed_experts": 8, "num_experts": ..., "n_shared_experts": 2, "num_shared_experts": ..., "head_dim": 8},
    ),
}
"""The class and the model type that transformers writes into files of a family, and the fields that differ there."""


@pytest.mark.parametrize("architecture", WITHIN)
def test_files_that_name_the_class_that_transformers_computes_a_family_with(architecture: str, tmp_path: Path) -> None:
    """Their tensors have the family's names all the same, and fields that they leave out its defaults."""
    shared, model_type, changes = WITHIN[architecture]
    expected = spec_of(tmp_path, architecture)
    write(
        tmp_path,
        {**SIZES, **HEADS, **OWN[architecture].fields, **changes, "model_type": model_type, "architectures": [shared]},
    )
    assert read_spec(ModelFiles("test", directory=tmp_path)) == expected


@pytest.mark.parametrize("vocab_size", [131, 125696])
def test_baichuan_of_13b_has_alibi_and_the_second_one_a_head_of_unit_rows(vocab_size: int, tmp_path: Path) -> None:
    """Of Llama without rotations, with ALiBi's terms in its mask; 2 ** -i is the slope of the head i of 8."""
    own = replace(OWN["BaiChuanForCausalLM"], changes={"num_key_value_heads": 8, "head_dim": 8})
    model = reference_model(own.like, **{**SIZES, **HEADS, **own.changes, "vocab_size": vocab_size})
    save_file(published(load_file(save(model, tmp_path) / "model.safetensors"), own), tmp_path / "model.safetensors")
    config = {**SIZES, **HEADS, **own.fields, "vocab_size": vocab_size, "architectures": ["BaichuanForCausalLM"]}
    write(tmp_path, {**config, "max_position_embeddings": ..., "model_max_length": 512})
    files = ModelFiles("test", directory=tmp_path)
    decoder = load_model(files, read_spec(files), torch.device("cpu"), torch.float32, lambda *_: None)
    model.model.rotary_emb.inv_freq.zero_()
    if vocab_size != 131:
        model.lm_head.weight.data /= model.lm_head.weight.data.norm(dim=-1, keepdim=True)
    places = torch.arange(len(TOKENS))
    distances = places[:, None] - places
    terms = -distances * 2.0 ** -torch.arange(1, 9)[:, None, None]
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS]), attention_mask=terms.masked_fill(distances < 0, -math.inf)[None])
    torch.testing.assert_close(logits_of(decoder), expected.logits[0], rtol=1e-4, atol=1e-4)


def test_baichuan_of_7b_has_rope(tmp_path: Path) -> None:
    """Baichuan 2's are of the class of those of 13B, and their sizes alone tell them apart."""
    sizes = {**SIZES, "hidden_size": 4096, "num_attention_heads": 32, "head_dim": ..., "vocab_size": 125696}
    write(tmp_path, {**sizes, "architectures": ["BaichuanForCausalLM"]})
    spec = read_spec(ModelFiles("test", directory=tmp_path))
    assert isinstance(mixer := spec.layers[0].mixer, AttentionSpec)
    assert mixer.rope is not None and mixer.alibi is None and mixer.num_kv_heads == 32
    assert spec.head is not None and spec.head.unit_rows


TELECHAT2 = {
    "vocab_size": 131,
    "hidden_size": 64,
    "n_layer": 3,
    "n_head": 8,
    "num_key_value_heads": 2,
    "ffn_hidden_size": 96,
    "layer_norm_epsilon": 0.01,
    "training_seqlen": 8192,
    "base_seqlen": 2048,
    "architectures": ["TeleChat2ForCausalLM"],
}
TELECHAT2_NAMES = (
    ("model.embed_tokens", "transformer.word_embeddings"),
    ("model.layers", "transformer.h"),
    ("model.norm", "transformer.ln_f"),
    ("self_attn.o_proj", "self_attention.dense"),
    ("self_attn.q_proj", "self_attention.query"),
    ("self_attn.key_value", "self_attention.key_value"),
)


def test_telechat2_has_each_heads_key_before_its_value_and_biases_after_both_parts(tmp_path: Path) -> None:
    """Of Llama whose other biases are zeros; four times the first length makes RoPE's base 7 ** (8 / 6) as large."""
    rope = {"rope_type": "default", "rope_theta": 10000.0 * 7 ** (8 / 6)}
    changes = {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.01, "rope_parameters": rope}
    model = reference_model("Llama", **{**SIZES, **HEADS, **changes})
    for name, parameter in model.named_parameters():
        if name.endswith("_proj.bias") and not name.endswith(("o_proj.bias", "down_proj.bias")):
            parameter.data.zero_()
    tensors = load_file(save(model, tmp_path) / "model.safetensors")
    tensors = {name: each for name, each in tensors.items() if not name.endswith("_proj.bias") or each.any()}
    for layer in range(3):
        start = f"model.layers.{layer}.self_attn."
        heads = [tensors.pop(f"{start}{part}.weight").view(2, 8, 64) for part in ("k_proj", "v_proj")]
        tensors[f"{start}key_value.weight"] = torch.cat(heads, dim=1).reshape(32, 64)
    for there, here in TELECHAT2_NAMES:
        tensors = {name.replace(there, here): each for name, each in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    write(tmp_path, TELECHAT2)
    files = ModelFiles("test", directory=tmp_path)
    decoder = load_model(files, read_spec(files), torch.device("cpu"), torch.float32, lambda *_: None)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert expected.argmax(-1).unique().numel() > 2
    torch.testing.assert_close(logits_of(decoder), expected, rtol=1e-4, atol=1e-4)


def test_rope_of_telechat2_needs_the_length_that_its_base_follows_from(tmp_path: Path) -> None:
    """The first TeleChat lacks it; what its code computes is not supported. A `rope_theta` is not read."""
    write(tmp_path, {**TELECHAT2, "training_seqlen": 2048, "rope_theta": 500.0})
    mixer = read_spec(ModelFiles("test", directory=tmp_path)).layers[0].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None and mixer.rope.theta == 10000
    write(tmp_path, {**TELECHAT2, "base_seqlen": ...})
    with pytest.raises(ModelLoadError, match="base_seqlen is missing"):
        read_spec(ModelFiles("test", directory=tmp_path))


@pytest.mark.parametrize("field", ["embed_layernorm", "apply_residual_connection_post_layernorm"])
def test_other_norms_of_telechat_are_refused(field: str, tmp_path: Path) -> None:
    write(tmp_path, {**TELECHAT2, field: True})
    with pytest.raises(ModelLoadError, match=f"{field} True is not supported"):
        read_spec(ModelFiles("test", directory=tmp_path))


@pytest.mark.parametrize("alibi", [False, True])
def test_falcon_of_2023_without_a_number_of_kv_heads_is_of_the_first_generation(alibi: bool, tmp_path: Path) -> None:
    """Those of 7B, and Falcon RW, which has ALiBi and whose heads have keys of their own."""
    own = {"multi_query": not alibi, "parallel_attn": not alibi, "alibi": alibi, "bias": alibi}
    found = spec_of(tmp_path, "RWForCausalLM", n_head_kv=..., **own)
    sizes = {"vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
    write(tmp_path, {**sizes, **own, "layer_norm_epsilon": 0.01, "architectures": ["FalconForCausalLM"]})
    later = read_spec(ModelFiles("test", directory=tmp_path))
    assert found == replace(later, architecture="RWForCausalLM")
    assert isinstance(mixer := found.layers[0].mixer, AttentionSpec)
    assert mixer.num_kv_heads == (8 if alibi else 1)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_yarn_of_sarvam_under_the_name_of_version_5(key: str, tmp_path: Path) -> None:
    """vLLM reads it there."""
    name, rope = "SarvamMLAForCausalLM", {**YARN, key: "deepseek_yarn", "rope_theta": 500.0}
    assert spec_of(tmp_path, name, rope_scaling=..., rope_theta=..., rope_parameters=rope) == spec_of(tmp_path, name)


def test_internlm3_within_the_class_of_llama(tmp_path: Path) -> None:
    """As transformers writes it; fields that a file leaves out have InternLM 3's defaults, not Llama's."""
    config = {**SIZES, "num_attention_heads": 8, "attention_bias": True, "mlp_bias": True, "model_type": "internlm3"}
    write(tmp_path, {**config, "architectures": ["LlamaForCausalLM"]})
    found = read_spec(ModelFiles("test", directory=tmp_path))
    assert found.norm is not None and found.norm.eps == 1e-5
    mixer, mlp = found.layers[0].mixer, found.layers[0].feed_forward
    assert isinstance(mixer, AttentionSpec) and isinstance(mlp, MLPSpec)
    assert (mixer.num_kv_heads, mixer.qkv_bias, mixer.output_bias, mlp.bias) == (2, True, True, True)


WEIGHTS_OF_4_BITS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
QUANTIZED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS_OF_4_BITS}},
}
"""All linears, the head among them."""
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a rotary of InternLM": (
        "InternLMForCausalLM",
        {"rotary": {"base": 10000, "type": "linear"}},
        "rotary.type 'linear' is not supported",
    ),
    "the first ChatGLM": (
        "ChatGLMModel",
        {"inner_hidden_size": 16384},
        "inner_hidden_size 16384 is of the first ChatGLM",
    ),
    "as many KV heads as heads": ("ChatGLMModel", {"multi_query_attention": False}, "multi_query_attention False"),
    "ChatGLM in 4 bits": ("ChatGLMModel", {"quantization_bit": 4}, "quantization_bit 4"),
    "ChatGLM 2 or 3 of 32k": ("ChatGLMModel", {"padded_vocab_size": 65024}, "rope_ratio 500.0 means different things"),
    "RoPE of halves": ("ChatGLMModel", {"original_rope": False}, "original_rope False"),
    "biases of Qwen": ("QWenLMHeadModel", {"no_bias": False}, "no_bias False"),
    "sigmoid": ("DeepseekForCausalLM", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid'"),
    "softmax of Sarvam": ("SarvamMLAForCausalLM", {"score_function": "softmax"}, "score_function 'softmax' is not"),
    "a tied head of unit rows": (
        "BaiChuanForCausalLM",
        {"vocab_size": 125696, "tie_word_embeddings": True},
        "vocab_size 125696 is Baichuan 2's, whose head must be neither tied nor quantized",
    ),
    "a quantized head of unit rows": (
        "BaiChuanForCausalLM",
        {"vocab_size": 125696, "quantization_config": QUANTIZED},
        "head must be neither tied nor quantized",
    ),
    "InfLLM": ("MiniCPMForCausalLM", {"sparse_config": {"topk": 64}}, "sparse_config"),
    "a normalised head": ("BailingMoeForCausalLM", {"norm_head": True}, "norm_head True"),
    "softmax": ("BailingMoeV2ForCausalLM", {"score_function": "softmax"}, "score_function 'softmax'"),
    "no correction": ("BailingMoeV2ForCausalLM", {"moe_router_enable_expert_bias": False}, "expert_bias False"),
    "the results' own stream": ("MiniMaxM1ForCausalLM", {"postnorm": False}, "postnorm False"),
    "a shared expert": ("MiniMaxM1ForCausalLM", {"shared_intermediate_size": 8}, "shared_intermediate_size 8"),
    "a third kind of layers": ("MiniMaxM1ForCausalLM", {"attn_type_list": [0, 2, 1]}, "attn_type_list"),
    "two of three layers": ("DeciLMForCausalLM", {"block_configs": BLOCKS[:2]}, "does not name 3 layers"),
    "Deci 7B": ("DeciLMForCausalLM", {"block_configs": None}, "block_configs"),
    "a head of some rows of the embedding": (
        "Apertus1p5TextForCausalLM",
        {"tie_word_embeddings": True},
        "output_vocab_size 131 is not vocab_size 140",
    ),
    "a linear": (
        "DeciLMForCausalLM",
        {"block_configs": [{"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}}] * 3},
        r"block_configs\[0\]\.attention\.replace_with_linear True is not supported",
    ),
    "uneven groups": (
        "DeciLMForCausalLM",
        {"block_configs": [{"attention": {"n_heads_in_group": 3}, "ffn": {"no_op": True}}] * 3},
        "n_heads_in_group 3 does not divide num_attention_heads 8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused(name: str, tmp_path: Path) -> None:
    architecture, fields, message = REFUSED[name]
    with pytest.raises(ModelLoadError, match=message):
        spec_of(tmp_path, architecture, **fields)
