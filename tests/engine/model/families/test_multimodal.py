"""Multimodal models answer text like transformers, also from files on the hub with older tensor names."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SIZES, reference_model, save, save_words
from rank_logits import TOKENS, logits_of
from reference import assert_same
from safetensors.torch import load_file, save_file

from octavo_engine import LLM, SamplingParams
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.families import FAMILIES
from octavo_engine.model.families.multimodal import language_model, within_wrapper
from octavo_engine.model.families.multimodal_classes import WRAPPERS
from octavo_engine.model.families.multimodal_language_models import DEFAULTS, TIED_BY_DEFAULT
from octavo_engine.model.families.multimodal_own_classes import SHORT_NAMES
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles

SMALL = {**SIZES, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_IMAGES = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2}
MROPE = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Gemma3": ({"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2}, IMAGES),
    "Gemma4": (
        {
            "head_dim": 16,
            "global_head_dim": 24,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 12,
            "pad_token_id": 0,
            "vocab_size_per_layer_input": 131,
            "final_logit_softcapping": 5.0,
        },
        {
            **{name: IMAGES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
            "head_dim": 16,
        },
    ),
    "Mistral3": (
        {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
        {**IMAGES, "model_type": "pixtral"},
    ),
    "AyaVision": (
        {"model_type": "cohere2", "sliding_window": 8, "logit_scale": 0.3},
        {**IMAGES, "model_type": "siglip_vision_model"},
    ),
    "CohereCompass": (
        {"rope_parameters": {"full_attention": {**MROPE, "mrope_section": [2, 1, 1]}}, "logit_scale": 0.3},
        {**QWEN_IMAGES, "deepstack_visual_indexes": [0]},
    ),
    "Qwen2_5_VL": (
        {"head_dim": 16, "hidden_size": 128, "rope_parameters": MROPE},
        {**QWEN_IMAGES, "out_hidden_size": 128, "fullatt_block_indexes": [1]},
    ),
    "Qwen3VL": ({"head_dim": 16, "rope_parameters": MROPE}, {**QWEN_IMAGES, "deepstack_visual_indexes": [0]}),
    "Llama4": (
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "intermediate_size_mlp": 64,
            "attention_chunk_size": 8,
            "no_rope_layer_interval": 2,
        },
        {**IMAGES, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    ),
    "Glm4v": (
        {
            "head_dim": 16,
            "hidden_size": 128,
            "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5},
        },
        {**QWEN_IMAGES, "out_hidden_size": 128},
    ),
    "Ovis2": ({"model_type": "qwen2"}, {**IMAGES, "vocab_size": 128, "num_visual_indicator_tokens": 5}),
    "SmolVLM": ({"model_type": "llama"}, {**IMAGES, "model_type": "smolvlm_vision"}),
    "Qwen3VLMoe": (
        {
            "head_dim": 16,
            "rope_parameters": MROPE,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "mlp_only_layers": [1],
        },
        {**QWEN_IMAGES, "deepstack_visual_indexes": [0]},
    ),
    "Lfm2Vl": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
        {**IMAGES, "model_type": "siglip2_vision_model"},
    ),
    "Janus": ({}, IMAGES),
    "Fuyu": ({"model_type": "persimmon", "num_key_value_heads": 8}, {}),
    "PaddleOCRVL": ({"head_dim": 16, "hidden_size": 128, "use_bias": True, "rope_parameters": MROPE}, IMAGES),
    "GlmOcr": (
        {"head_dim": 16, "hidden_size": 128, "rope_parameters": MROPE},
        {**QWEN_IMAGES, "out_hidden_size": 128},
    ),
    "Kimi_K25": (
        {
            "num_key_value_heads": 8,
            "q_lora_rank": 40,
            "kv_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        IMAGES,
    ),
    "QianfanOCR": ({"head_dim": 16}, IMAGES),
    "HunYuanVL": ({"head_dim": 16, "rope_parameters": {**MROPE, "mrope_section": [2, 2, 2, 2]}}, IMAGES),
    "Lfm3Vl": (
        {
            "model_type": "lfm3",
            "layer_types": ["conv", "full_attention", "sliding_attention"],
            "sliding_window": 8,
            "head_dim": 16,
        },
        {**IMAGES, "model_type": "siglip2_vision_model"},
    ),
    "Qwen3OmniMoeThinker": (
        {
            "head_dim": 16,
            "rope_parameters": MROPE,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
        },
        {**QWEN_IMAGES, "deepstack_visual_indexes": [0]},
    ),
    "Qwen3ASR": ({"head_dim": 16}, {}),
    "MiniCPMV4_7": (
        {"head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        {**IMAGES, "insert_layer_id": 0},
    ),
    "MiniMaxM3Sparse": (
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"],
            "dense_intermediate_size": 40,
            "shared_intermediate_size": 24,
            "index_head_dim": 16,
        },
        IMAGES,
    ),
    "Step3p7": (
        {
            "pad_token_id": 0,
            "head_dim": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window": 8,
            "num_sliding_attention_heads": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 36,
            "share_expert_dim": 20,
            "moe_router_scaling_factor": 1.7,
            "attention_bias": True,
            "swiglu_limits": [0.0, 0.4, None],
            "swiglu_limits_shared": [0.5, None, 0.6],
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        IMAGES,
    ),
    "Granite4Vision": (
        {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.6, "attention_multiplier": 0.2},
        {**IMAGES, "model_type": "siglip_vision_model", "hidden_size": 64},
    ),
    "PerceptionLM": (
        {"model_type": "llama"},
        {**IMAGES, "model_type": "siglip_vision_model", "model_args": {"embed_dim": 32}},
    ),
    "MistralLarge4": (
        {
            "pad_token_id": 0,
            "num_hidden_layers": 6,
            "num_key_value_heads": 8,
            "kv_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "n_group": 2,
            "topk_group": 1,
            "index_n_heads": 2,
            "no_rope_layers": [1, 0, 1, 0, 1, 1],
            "kv_source_layers": [0, 1, 0, 1, 4, 4],
            "final_logit_softcapping": 4.0,
            "attention_bias": True,
        },
        {**IMAGES, "model_type": "pixtral"},
    ),
    "Qwen4Exp": (
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 20,
            "hc_lowrank": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 32,
            "indexer_compress_ratio": 4,
        },
        QWEN_IMAGES,
    ),
    "Dots3Note": (
        {
            "num_key_value_heads": 8,
            "q_lora_rank": 40,
            "kv_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "head_dim": 20,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "index_n_heads": 2,
            "use_sliding_window": False,
        },
        {**IMAGES, "adapter_in_dim": 32, "adapter_out_dim": 64, "num_local_experts": 4, "pyramid_num_routed": [-1, 4]},
    ),
    "HyperCLOVAXVisionV2": (
        {"model_type": "hyperclovax", "head_dim": 8, "logits_scaling": 0.5, "embedding_multiplier": 1.5},
        {**QWEN_IMAGES, "model_type": "qwen2_5_vl_vision", "fullatt_block_indexes": [1]},
    ),
    "InternVL": (
        {
            "model_type": "gpt_oss",
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
        },
        {**IMAGES, "model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "Llava": (
        {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8, "final_logit_softcapping": 5.0},
        {**IMAGES, "model_type": "siglip_vision_model"},
    ),
    "Mllama": (
        {
            "num_hidden_layers": 5,
            "cross_attention_layers": [1, 3],
            "bos_token_id": 1,
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        {
            **IMAGES,
            "intermediate_layers_indices": [0],
            "num_global_layers": 1,
            "vision_output_dim": 64,
            "attention_heads": 2,
            "supported_aspect_ratios": [[1, 1]],
            "max_num_tiles": 1,
        },
    ),
    "DeepseekOcr2": (
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 1.3,
        },
        {
            "sam_config": {
                **IMAGES,
                "global_attn_indexes": [1],
                "output_channels": 16,
                "downsample_channels": [16, 32],
            },
            "encoder_config": {**SIZES, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
        },
    ),
    "Glm5Next": (
        {
            "num_key_value_heads": 8,
            "num_hidden_layers": 4,
            "q_lora_rank": 20,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "linear_num_heads": 4,
            "linear_head_dim": 12,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "n_group": 2,
            "layer_types": ["indexed_attention", "linear_attention", "indexed_attention", "indexed_attention"],
            "indexer_types": ["full", "full", "full", "shared"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            "index_topk": 8,
            "index_kpool": 4,
            "index_n_heads": 16,
            "index_head_dim": 12,
            "hc_mult": 3,
            "swiglu_limit": 0.8,
            "attention_bias": True,
        },
        {**QWEN_IMAGES, "depth": 1},
    ),
    "MuseGlimmer": (
        {
            "head_dim": 16,
            "sliding_window": 8,
            "layer_rope_theta": [0, 1000.0, 1000.0],
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "qk_scale_factor": 2.0,
            "post_norm_eps": 0.1,
            "output_multiplier": 0.7,
            "final_logit_softcapping": 3.0,
        },
        {
            name: IMAGES[name]
            for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        },
    ),
    "Cosmos3Edge": (
        {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "rope_parameters": MROPE},
        {name: IMAGES[name] for name in IMAGES if name != "image_size"},
    ),
    "Cosmos3Omni": (
        {"model_type": "qwen3_vl_text", "head_dim": 16, "rope_parameters": MROPE},
        {**QWEN_IMAGES, "deepstack_visual_indexes": [0]},
    ),
    "Ernie4_5_VLMoe": (
        {
            "moe_intermediate_size": [32, 16],
            "moe_num_experts": 6,
            "moe_k": 3,
            "head_dim": 8,
            "use_bias": True,
            "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]},
        },
        {**{name: QWEN_IMAGES[name] for name in QWEN_IMAGES if name != "out_hidden_size"}, "depth": 1},
    ),
    "AudioFlamingo3": ({}, {}),
    "Voxtral": ({"tie_word_embeddings": True}, {}),  # it has a weight of its own for the head all the same
}
WHOLE: dict[str, dict[str, Any]] = {
    "Granite4Vision": {"deepstack_layer_map": [[0, 1]], "downsample_rate": "1/2", "spatial_vision_layer": 0},
    "Dots3Note": {
        "audio_config": {
            **{name: IMAGES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
            "num_attention_heads": 2,
            "feature_size": 16,
            "downsample_hidden_size": 8,
            "adapter_input_size": 32,
            "adapter_out_dim": 64,
        }
    },
}
"""Fields beside the parts' own."""
ODDLY_SAVED = ("blocks", "encoder.layers")
"""What transformers 5 calls the layers of Kimi K2.5 and Qianfan OCR in the files that it writes."""
HEARING = {"AudioFlamingo3", "Qwen3ASR", "Qwen3OmniMoeThinker", "Voxtral"}
SOUND = {**IMAGES, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48}


def make(name: str) -> Any:
    """The model with random weights."""
    import transformers

    torch.manual_seed(1234)
    text, images = MODELS[name]
    kind = "ForConditionalGeneration" if hasattr(transformers, f"{name}ForConditionalGeneration") else "ForCausalLM"
    model_class = getattr(transformers, f"{name}{kind}")
    sound = {"audio_config": {**SOUND, "output_dim": 64}} if name in HEARING else {}
    inputs: dict[str, Any] = {"vision_config": images, "image_token_id": 120} if images or not sound else {}
    whole = WHOLE.get(name, {})
    return drawn(model_class(model_class.config_class(text_config={**SMALL, **text}, **inputs, **sound, **whole)))


def drawn(model: Any) -> Any:
    """`model` with random weights."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.25)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "rotary_emb.alpha")):
                buffer.normal_(std=0.25)
    return model


def load(directory: Path) -> Any:
    files = ModelFiles("test", directory=directory)
    return load_model(files, read_spec(files), torch.device("cpu"), torch.float32, lambda *_: None)


def rename(directory: Path, *renames: tuple[str, str]) -> None:
    """Write the tensors under other names."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for old, new in renames:
        tensors = {name.replace(old, new, 1) if name.startswith(old) else name: t for name, t in tensors.items()}
    save_file(tensors, file)


def test_published_fields_of_minimax_m3_mean_what_transformers_makes_of_them(tmp_path: Path) -> None:
    import transformers

    save(make("MiniMaxM3Sparse"), tmp_path)
    expected = read_spec(ModelFiles("test", directory=tmp_path))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    text = config["text_config"]
    for name in ("layer_types", "mlp_layer_types", "index_block_size", "index_topk_blocks"):
        del text[name]
    sparse = {"sparse_attention_freq": [0, 1, 0], "sparse_block_size": 8, "sparse_topk_blocks": 2}
    text |= {"hidden_act": "swigluoai", "moe_layer_freq": [0, 1, 1], "sparse_attention_config": sparse}
    file.write_text(json.dumps(config))
    converted = transformers.AutoConfig.from_pretrained(tmp_path).text_config
    assert (converted.index_block_size, converted.index_topk_blocks) == (8, 2)
    found = read_spec(ModelFiles("test", directory=tmp_path))
    assert found.max_position == 16
    assert replace(found, max_position=expected.max_position) == expected


@pytest.mark.parametrize("name", MODELS)
def test_text_is_answered_as_in_transformers(name: str, tmp_path: Path) -> None:
    model = make(name)
    save(model, tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3
    rename(tmp_path, *((f"language_model.model.{odd}.", "language_model.model.layers.") for odd in ODDLY_SAVED))
    if any(key.startswith("language_model.model.") for key in load_file(tmp_path / "model.safetensors")):
        rename(tmp_path, ("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head."))
    else:
        rename(tmp_path, ("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
    if name == "Kimi_K25":  # as Moonshot's files call the class
        path = tmp_path / "config.json"
        path.write_text(path.read_text().replace("Kimi_K25For", "KimiK25For"))
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


PUBLISHED_ROPES = {
    "Qwen2_5_VL": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "HunYuanVL": {"type": "xdrope", "xdrope_section": [2, 2, 2, 2], "alpha": 1000.0, "factor": 1.0, "mscale": 1.0},
}


@pytest.mark.parametrize("name", PUBLISHED_ROPES)
def test_ropes_of_several_positions_under_their_first_names(name: str, tmp_path: Path) -> None:
    """Qwen2-VL, Qwen2.5-VL and HunyuanOCR are published so, without text_config."""
    model = make(name)
    save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    base = text.pop("rope_parameters")["rope_theta"]
    published = {**text, **config, "rope_theta": base, "rope_scaling": PUBLISHED_ROPES[name]}
    (tmp_path / "config.json").write_text(json.dumps(published))
    model = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


@pytest.mark.parametrize("name", ["HyperCLOVAXVisionV2", "Kimi_K25"])
def test_a_head_that_neither_config_json_nor_the_files_state_is_the_embedding(name: str, tmp_path: Path) -> None:
    """In classes that tie both by default, whatever the language model's own fields say."""
    model = make(name)
    save(model, tmp_path)
    path, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    config = json.loads(path.read_text())
    del config["tie_word_embeddings"]
    config["text_config"]["tie_word_embeddings"] = False
    path.write_text(json.dumps(config))
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3
    tensors = load_file(file)
    embedding = next(values for tensor, values in tensors.items() if tensor.endswith("embed_tokens.weight"))
    save_file({**tensors, "language_model.lm_head.weight": embedding + 1}, file)
    assert not read_spec(ModelFiles("test", directory=tmp_path)).head.tied
    save_file({**tensors, "language_model.lm_head.weight": embedding.clone()}, file)
    path.write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert read_spec(ModelFiles("test", directory=tmp_path)).head.tied


@pytest.mark.parametrize("wrapper", [*DEFAULTS, "Cosmos3OmniForConditionalGeneration"])
def test_what_config_json_leaves_out_of_a_language_model(wrapper: str) -> None:
    """It is what transformers' class of the whole model says, not what the language model alone would have."""
    import transformers

    stem = wrapper.removesuffix("ForConditionalGeneration").removesuffix("Model")
    stem = f"{stem}Thinker" if stem in ("Qwen2_5Omni", "Qwen3OmniMoe") else stem
    text = getattr(transformers, f"{stem}Config")().text_config
    ours = DEFAULTS.get(wrapper) or FAMILIES[WRAPPERS[wrapper]].defaults
    fields = language_model({"architectures": [wrapper], "text_config": {"model_type": "llama"}})
    assert fields is not None
    for name in {"rope_theta", "rms_norm_eps", "max_position_embeddings", *DEFAULTS.get(wrapper, {})} & {*ours}:
        holder = type(text) if name == "sliding_window" else text  # which has none, unless `use_sliding_window`
        theirs = text.rope_parameters["rope_theta"] if name == "rope_theta" else getattr(holder, name)
        assert {**ours, **fields}[name] == theirs, name


def test_which_heads_are_tied_by_default() -> None:
    """They are those of transformers; Moonshot's own name of Kimi K2.5 is not one of its classes."""
    import transformers

    configs = {name: name.replace("ForConditionalGeneration", "Config") for name in WRAPPERS}
    known = {name: getattr(transformers, config, None) for name, config in configs.items()}
    expected = {name for name, config in known.items() if getattr(config, "tie_word_embeddings", None) is True}
    assert TIED_BY_DEFAULT - {"KimiK25ForConditionalGeneration"} == expected


MOLMO = {
    "qwen3": {"head_dim": 16},
    "olmo": {
        "qk_norm_type": "olmo",
        "head_dim": 16,
        "norm_after": True,
        "attention_bias": True,
        "rope_scaling_layers": [1],
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    },
}


@pytest.mark.parametrize("text", MOLMO.values(), ids=MOLMO)
def test_molmo_2_as_it_is_published(text: dict[str, Any], tmp_path: Path) -> None:
    """Its words and the parts of images have an embedding each, which transformers cuts in halves as it saves them."""
    from transformers import Molmo2Config, Molmo2ForConditionalGeneration

    torch.manual_seed(1234)
    images = {**IMAGES, "num_key_value_heads": 2, "head_dim": 16, "image_size": [28, 28]}
    adapter = {**images, "vision_feature_layer": [1, 0], "text_hidden_size": 64}
    del adapter["image_size"], adapter["patch_size"], adapter["num_hidden_layers"]
    parts = {"text_config": {**SMALL, **text, "additional_vocab_size": 8}, "vision_config": images}
    model = drawn(Molmo2ForConditionalGeneration(Molmo2Config(**parts, adapter_config=adapter)))
    save(model, tmp_path)
    file, names = tmp_path / "model.safetensors", [f"model.transformer.wte.{kind}embedding" for kind in ("", "new_")]
    tensors = load_file(file)
    words = torch.cat([tensors[name] for name in names])
    save_file({**tensors, names[0]: words[:131].clone(), names[1]: words[131:].clone()}, file)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


DEEPSEEK = {
    "num_key_value_heads": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
LATENTS = {"q_lora_rank": None, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
ONE: dict[str, Any] = {"num_hidden_layers": 1, "head_dim": 16}
NEMOTRON_H = {
    "num_hidden_layers": None,
    "layers_block_type": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
}
OWN_CLASSES: dict[str, tuple[str, str, str | None, dict[str, Any], str, str]] = {
    "InternVLChatModel": ("InternVLChatModel", "Qwen2", "llm_config", {}, "language_model.", "mlp1.0.weight"),
    "KimiVL": (
        "KimiVLForConditionalGeneration",
        "DeepseekV3",
        "text_config",
        MODELS["Kimi_K25"][0] | {"q_lora_rank": None},
        "language_model.",
        "multi_modal_projector.linear_1.weight",
    ),
    "MiniCPM-V 2.6": (
        "MiniCPMV",
        "Qwen2",
        None,
        {"model_type": "minicpmv", "version": 2.6},
        "llm.",
        "resampler.kv_proj.weight",
    ),
    "MiniCPM-o 4.5": (
        "MiniCPMO",
        "Qwen3",
        None,
        {"model_type": "minicpmo", "version": "4.5"},
        "llm.",
        "tts.emb.weight",
    ),
    "Ovis 2.5": ("Ovis2_5", "Qwen3", "llm_config", {"tie_word_embeddings": True}, "llm.", "vte.weight"),
    "Phi-3-vision": (
        "Phi3VForCausalLM",
        "Phi3",
        None,
        {"model_type": "phi3_v", "pad_token_id": 0},
        "",
        "model.vision_embed_tokens.glb_GN",
    ),
    "dots.ocr": (
        "DotsOCRForCausalLM",
        "Qwen2",
        None,
        {"model_type": "dots_ocr"},
        "",
        "vision_tower.blocks.0.norm.weight",
    ),
    "DeepSeek VL 2": (
        "DeepseekVLV2ForCausalLM",
        "DeepseekV2",
        "language_config",
        DEEPSEEK | LATENTS | {"topk_method": "greedy"},
        "language.",
        "vision.pos_embed",
    ),
    "DeepSeek VL 2 of 27B": (
        "DeepseekVLV2ForCausalLM",
        "DeepseekV3",
        "language_config",
        DEEPSEEK | LATENTS | {"topk_method": "noaux_tc", "n_group": 1, "topk_group": 1},
        "language.",
        "view_seperator",
    ),
    "H2OVL": (
        "H2OVLChatModel",
        "Mistral",
        "llm_config",
        {**ONE, "model_type": "mistral", "sliding_window": 8},
        "language_model.",
        "vision_model.embeddings.class_embedding",
    ),
    "Intern S1": (
        "InternS1ForConditionalGeneration",
        "Qwen3Moe",
        "text_config",
        {**ONE, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40},
        "model.language_model.",
        "model.vision_tower.embeddings.cls_token",
    ),
    "NVLM": ("NVLM_D", "Qwen2", "llm_config", {**ONE, "model_type": "qwen2"}, "language_model.", "mlp1.1.weight"),
    "OpenCUA": ("OpenCUAForConditionalGeneration", "Qwen2", "text_config", ONE, "language_model.", "vision_tower.norm"),
    "Bee": (
        "BeeForConditionalGeneration",
        "Qwen3",
        "text_config",
        ONE,
        "model.language_model.",
        "model.multi_modal_projector.pre_norm.weight",
    ),
    "R-4B": (
        "RForConditionalGeneration",
        "Qwen3",
        "text_config",
        {**ONE, "model_type": "qwen3"},
        "language_model.",
        "multi_modal_projector.pre_norm.weight",
    ),
    "Skywork R1V": (
        "SkyworkR1VChatModel",
        "Qwen2",
        "llm_config",
        {**ONE, "model_type": "qwen2"},
        "language_model.",
        "mlp1.0.weight",
    ),
    "Nemotron Nano VL": (
        "Llama_Nemotron_Nano_VL",
        "Llama",
        "llm_config",
        {**ONE, "model_type": "llama"},
        "language_model.",
        "vision_model.radio_model.input_conditioner.norm_mean",
    ),
    "Nemotron Nano 2 VL": (
        "NemotronH_Nano_VL_V2",
        "NemotronH",
        "llm_config",
        NEMOTRON_H,
        "language_model.",
        "vision_model.radio_model.summary_idxs",
    ),
    "Nemotron 3 Omni": (
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH",
        "llm_config",
        NEMOTRON_H,
        "language_model.",
        "sound_projection.norm.weight",
    ),
    "Keye": ("KeyeForConditionalGeneration", "Qwen3", None, ONE, "", "mlp_AR.pre_norm.bias"),
    "LightOnOCR": (
        "LightOnOCRForConditionalGeneration",
        "Qwen3",
        "text_config",
        {**ONE, "model_type": "qwen3"},
        "model.language_model.",
        "model.vision_projection.norm.weight",
    ),
    "Ovis 1.6": (
        "Ovis",
        "Gemma2",
        "llm_config",
        {**ONE, "model_type": "gemma2"},
        "llm.",
        "visual_tokenizer.head.0.bias",
    ),
}


@pytest.mark.parametrize("name", OWN_CLASSES)
def test_models_whose_class_stands_in_their_repositories(name: str, tmp_path: Path) -> None:
    """The generation_config.json of InternVL has no end, which its `llm_config` has."""
    wrapper, family, part, changes, prefix, other = OWN_CLASSES[name]
    model = reference_model(family, **{**SMALL, **changes})
    save(model, tmp_path)
    if prefix.startswith("model."):
        rename(tmp_path, ("model.", prefix))
    else:
        rename(tmp_path, ("model.", f"{prefix}model."), ("lm_head.", f"{prefix}lm_head."))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, other: torch.ones(4)}, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text()) | changes | {"eos_token_id": 5}
    config = {"dtype": "float32", "vision_config": {"image_size": 28}}
    config |= {part: text} if part is not None else text
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [wrapper]}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"_from_model_config": True}))
    assert read_spec(ModelFiles("test", directory=tmp_path)).eos_token_ids == (5,)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


@pytest.mark.parametrize("name", ["tts.emb.weight", "vte.weight", "vision.pos_embed", "llm.norm.weight", "language.x"])
def test_short_names_of_some_classes_are_unknown_in_the_files_of_others(name: str) -> None:
    """A tensor of another model that begins so is refused, not ignored or taken for another."""
    for wrapper in {*WRAPPERS} - {*SHORT_NAMES}:
        assert within_wrapper(wrapper, StoredNames()).own(name) == name
    read = {wrapper: within_wrapper(wrapper, StoredNames()).own(name) for wrapper in SHORT_NAMES}
    assert set(read.values()) == {name, None if name.startswith(("tts", "vte", "vision")) else name.partition(".")[2]}


def test_deepseek_ocr_as_it_is_published(tmp_path: Path) -> None:
    """Its class is that of DeepSeek V2, which it says not to use latent attention with."""
    model = make("DeepseekOcr2")
    save(model, tmp_path)
    rename(tmp_path, ("model.language_model.", "model."))
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    text |= {"architectures": ["DeepseekV2ForCausalLM"], "use_mla": False, "kv_lora_rank": None}
    config = {"architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2", "language_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


def test_a_model_that_also_speaks_answers_text_by_its_thinker(tmp_path: Path) -> None:
    """Qwen2.5 Omni: the part that speaks is not loaded."""
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    torch.manual_seed(1234)
    text, images = MODELS["Qwen2_5_VL"]
    parts = {"vision_config": images, "audio_config": {**SOUND, "output_dim": 128}}
    thinker = {"text_config": {**SMALL, **text}, **parts}
    config = Qwen2_5OmniConfig(thinker_config=thinker, enable_audio_output=False)
    model = drawn(Qwen2_5OmniForConditionalGeneration(config))
    save(model, tmp_path)
    with torch.inference_mode():
        expected = model.thinker(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    spoken = {"talker.codec_head.weight": torch.ones(4, 4), "token2wav.code2wav_dit_model.x": torch.ones(4)}
    save_file({**load_file(tmp_path / "model.safetensors"), **spoken}, tmp_path / "model.safetensors")
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


@pytest.mark.parametrize("name", ["Step3p7", "MistralLarge4", "Glm5Next"])
def test_a_batch_gets_the_same_answers(name: str, tmp_path: Path) -> None:
    """Of language models that transformers has no class for alone: in chunks, with preemptions, after hits."""
    model = make(name)
    save_words(save(model, tmp_path), SIZES["vocab_size"])
    draw = random.Random(1)
    prompts = [[draw.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in (70, 1, 33, 90)]
    greedy = SamplingParams(max_tokens=16, temperature=0.0, logprobs=20, ignore_eos=True)
    small = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "num_kv_blocks": 9, "max_model_len": 128}
    llm = LLM(str(tmp_path), device="cpu", dtype="float32", **small)
    try:
        alone, batched = llm.generate(prompts[:1], greedy), llm.generate(prompts, greedy)
        again = llm.generate([[*batched[-1].prompt_token_ids, *batched[-1].token_ids]], greedy)
    finally:
        llm.close()
    assert again[0].cached_tokens > 0
    assert_same(model, [*alone, *batched, *again], 16)


def test_blip_2_answers_text_by_its_opt(tmp_path: Path) -> None:
    """transformers asks for an image; only the language model within is the reference."""
    from transformers import Blip2Config, Blip2ForConditionalGeneration

    torch.manual_seed(1234)
    text = {**SMALL, "model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64, "pad_token_id": 1}
    sizes = {name: IMAGES[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    parts = {"vision_config": IMAGES, "qformer_config": {**sizes, "num_hidden_layers": 1, "vocab_size": 40}}
    model = drawn(Blip2ForConditionalGeneration(Blip2Config(text_config=text, **parts)))
    save(model, tmp_path)
    with torch.inference_mode():
        expected = model.language_model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


def test_what_reads_images_and_sound_within_phi_4_is_not_loaded(tmp_path: Path) -> None:
    from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM

    torch.manual_seed(1234)
    rope = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
    inputs = {"vision_config": {**IMAGES, "crop_size": 28}, "audio_config": SOUND}
    text = {**SMALL, "pad_token_id": 0, "sliding_window": 8, "rope_parameters": rope}
    model = drawn(Phi4MultimodalForCausalLM(Phi4MultimodalConfig(**text, **inputs)))
    save(model, tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    published = {}  # in Microsoft's own files linears have low-rank weights for images and for sound beside them
    for name, tensor in load_file(file).items():
        stem = name.removesuffix("_proj.weight")
        if stem == name or not name.startswith("model.layers."):
            published[name] = tensor
            continue
        published[f"{stem}_proj.base_layer.weight"] = tensor
        for kind in ("speech", "vision"):
            published |= {f"{stem}_proj.lora_{side}.{kind}.weight": torch.ones(4, 4) for side in "AB"}
    save_file(published, file)
    config.write_text(config.read_text().replace("Phi4MultimodalForCausalLM", "Phi4MMForCausalLM"))
    assert (logits_of(load(tmp_path)).log_softmax(-1) - expected).abs().max() < 1e-3


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": {**SIZES, "model_type": "t5"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"LlavaForConditionalGeneration of text_config\.model_type t5"):
        read_spec(ModelFiles("test", directory=tmp_path))


def test_a_tensor_that_belongs_to_no_known_part_is_refused(tmp_path: Path) -> None:
    save(make("SmolVLM"), tmp_path)
    rename(tmp_path, ("model.connector.", "model.audio."))
    with pytest.raises(ModelLoadError, match=r"model\.audio\."):
        load(tmp_path)
