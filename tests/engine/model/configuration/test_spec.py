"""read_spec: specs of config.json and GGUF headers, and one sentence for each error in them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from checkpoints import CONFIGURATIONS, LLAMA3_ROPE, SIZES, reference_model, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.layers.embeddings.rope import inverse_frequencies
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import LayerNorms, NormSpec, QKNormSpec

LLAMA_31 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "torch_dtype": "bfloat16",
    "eos_token_id": [128001, 128008, 128009],
    "tie_word_embeddings": False,
}
"""As published, in the layout before transformers 5."""


def spec_of(directory, config, generation=None):
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_spec(ModelFiles("test", directory=directory))


def test_the_config_of_llama_3_1_becomes_its_spec(tmp_path):
    spec = spec_of(tmp_path, LLAMA_31)
    mixer = spec.layers[0].mixer
    assert (spec.num_layers, mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (32, 32, 8, 128)
    assert set(spec.layers) == {spec.layers[0]}
    assert spec.dtype == torch.bfloat16
    assert spec.eos_token_ids == (128001, 128008, 128009)
    (rope,) = spec.ropes
    assert (rope.kind, rope.theta, rope.factor) == ("llama3", 500000.0, 8.0)
    (group,) = spec.kv_groups
    assert group.layers == tuple(range(32)) and group.window is None
    assert group.bytes_per_token(torch.bfloat16) == 131072


@pytest.mark.parametrize("architectures", [None, []])
def test_without_architectures_the_model_type_names_the_class(architectures, tmp_path):
    """transformers reads nothing else; a file without a context length gets that of transformers' class."""
    assert spec_of(tmp_path, {**LLAMA_31, "architectures": architectures}) == spec_of(tmp_path, LLAMA_31)
    baichuan = {**LLAMA_31, "architectures": architectures, "model_type": "baichuan"}
    assert spec_of(tmp_path, baichuan).architecture == "BaichuanForCausalLM"  # BaiChuan is its older spelling
    short = {name: value for name, value in LLAMA_31.items() if name not in ("max_position_embeddings", "rope_scaling")}
    assert spec_of(tmp_path, short).max_position == 2048
    assert spec_of(tmp_path, {**short, "architectures": ["Qwen3ForCausalLM"]}).max_position == 32768


@pytest.mark.parametrize(
    "changes", [*CONFIGURATIONS.values(), {"family": "Qwen3", "head_dim": 24}], ids=[*CONFIGURATIONS, "qwen3"]
)
def test_what_transformers_writes(changes, tmp_path):
    model = reference_model(**changes)
    config = model.config
    spec = read_spec(ModelFiles("test", directory=save(model, tmp_path)))
    mixer, mlp = spec.layers[0].mixer, spec.layers[0].feed_forward
    assert mixer.head_dim == config.head_dim and mixer.scale == config.head_dim**-0.5
    assert spec.head.tied == config.tie_word_embeddings
    assert mixer.qkv_bias == mixer.output_bias == config.attention_bias
    assert mlp.bias == mlp.output_bias == getattr(config, "mlp_bias", False)
    norm = NormSpec(config.rms_norm_eps)
    assert mixer.qk_norm == (QKNormSpec(norm) if config.model_type == "qwen3" else None)
    assert mlp.activation == config.hidden_act and spec.norm == norm
    assert spec.layers[0].norms == LayerNorms(before_mixer=norm, before_feed_forward=norm)
    assert spec.eos_token_ids == (2,) and spec.dtype == torch.float32
    assert torch.equal(inverse_frequencies(mixer.rope, mixer.head_dim), model.model.rotary_emb.inv_freq)


def test_old_and_new_rope_layouts_mean_the_same(tmp_path):
    base = {**SIZES, "architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    new = spec_of(tmp_path, {**base, "rope_parameters": LLAMA3_ROPE})
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    old = spec_of(tmp_path, {**base, "rope_theta": 10000.0, "rope_scaling": scaling})
    older = {"type": "linear", "factor": 2.0}
    assert new == old
    assert spec_of(tmp_path, {**base, "rope_scaling": older}).ropes[0].kind == "linear"
    assert spec_of(tmp_path, {**base, "rope_scaling": None}).ropes[0].kind == "default"


def test_ends_of_sequence_come_from_both_files(tmp_path):
    assert spec_of(tmp_path, {**LLAMA_31, "eos_token_id": 7}, {"eos_token_id": [9, 7]}).eos_token_ids == (7, 9)
    assert spec_of(tmp_path, {**LLAMA_31, "eos_token_id": None}, {}).eos_token_ids == ()
    without = {key: value for key, value in LLAMA_31.items() if key != "eos_token_id"}
    (tmp_path / "generation_config.json").unlink()
    assert spec_of(tmp_path, without).eos_token_ids == (2,), "the family's own default"


def test_ends_outside_the_vocabulary_are_left_out(tmp_path, caplog):
    assert spec_of(tmp_path, {**LLAMA_31, "eos_token_id": [5, 128256, -1]}).eos_token_ids == (5,)
    assert "128256" in caplog.text
    caplog.clear()
    assert spec_of(tmp_path, {**LLAMA_31, "eos_token_id": list(range(128256, 228256))}).eos_token_ids == ()
    assert len(caplog.text) < 500, "a list in a hostile file does not fill the log"


def test_the_type_of_the_weights_where_the_config_is_silent(tmp_path):
    save(reference_model(), tmp_path, dtype=torch.float16)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["dtype"]
    assert spec_of(tmp_path, config).dtype == torch.float16


def test_integers_are_not_the_type_that_is_computed_in(tmp_path):
    weights = {"quantized": torch.zeros(64, 64, dtype=torch.int8), "norm": torch.ones(64, dtype=torch.bfloat16)}
    save_file(weights, tmp_path / "model.safetensors")
    silent = {key: value for key, value in LLAMA_31.items() if key != "torch_dtype"}
    assert spec_of(tmp_path, silent).dtype == torch.bfloat16


def test_the_type_of_the_weights_before_they_are_here(tmp_path):
    silent = {key: value for key, value in LLAMA_31.items() if key != "torch_dtype"}
    assert spec_of(tmp_path, silent).dtype == torch.bfloat16
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert spec_of(tmp_path, silent).dtype == torch.bfloat16


def test_llama_4_without_rope_may_say_how_layers_with_rope_would_differ(tmp_path):
    rotating = {"use_qk_norm": True, "attention_chunk_size": 16, "no_rope_layer_interval": 1}
    config = {**SIZES, "architectures": ["Llama4ForCausalLM"], "intermediate_size_mlp": 96, **rotating}
    assert {layer.mixer.qk_norm for layer in spec_of(tmp_path, config).layers} == {None}


def test_llama_4_without_chunks_sees_all_tokens_in_every_layer(tmp_path):
    """As transformers 5.24 reads a chunk size of null; layers with RoPE keep it."""
    changes = {"intermediate_size_mlp": 96, "no_rope_layer_interval": 3, "attention_chunk_size": None}
    layers = spec_of(tmp_path, {**SIZES, "architectures": ["Llama4ForCausalLM"], **changes}).layers
    assert [layer.mixer.window for layer in layers] == [None] * 3
    assert [layer.mixer.rope is None for layer in layers] == [False, False, True]


def test_lara_mini_has_layers_of_qwen_s_families(tmp_path):
    """Its class came with transformers 5.24, later than that of the tests of families."""
    sizes = {**SIZES, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12}

    def layers(architecture, **changes):
        return spec_of(tmp_path, {**sizes, **linear, "architectures": [architecture], **changes}).layers

    found = layers("LaraMiniForCausalLM", num_hidden_layers=5, sliding_window=7, norm_topk_prob=False)
    [delta, *_] = layers("Qwen3_5MoeForCausalLM", layer_types=["linear_attention"] * 3)
    windows = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}
    [sliding, *_] = layers("Qwen3MoeForCausalLM", moe_intermediate_size=512, norm_topk_prob=False, **windows)
    everywhere = replace(sliding.mixer, window=None, rope=None)
    kinds = (delta.mixer, sliding.mixer, delta.mixer, everywhere, sliding.mixer)
    assert tuple(layer.mixer for layer in found) == kinds
    assert {layer.norms for layer in found} == {sliding.norms}
    [experts] = {layer.feed_forward for layer in found}
    assert replace(experts, shared=None, router=sliding.feed_forward.router) == sliding.feed_forward
    assert experts.router.scores == "softmax" and not experts.router.renormalize
    assert experts.shared == replace(delta.feed_forward.shared, gated=False)


def test_hy_4_for_images_is_hy_4_that_rotates_neighbours(tmp_path):
    """Its class came with transformers 5.24; the norms of its latents have the epsilon of all others."""
    sizes = {"q_lora_rank": 40, "rms_norm_eps": 0.01, "index_n_heads": 4, "moe_intermediate_size": 40}
    text = {**SIZES, **sizes, "num_key_value_heads": 8}
    plain = spec_of(tmp_path, {**text, "architectures": ["HYV4ForCausalLM"]}).layers
    whole = {"architectures": ["HYV4VLForConditionalGeneration"], "text_config": text}
    for found, layer in zip(spec_of(tmp_path, whole).layers, plain, strict=True):
        rope, index = (replace(part, interleaved=True) for part in (layer.mixer.rope, layer.mixer.index))
        assert found == replace(layer, mixer=replace(layer.mixer, rope=rope, index=index, norm=NormSpec(0.01)))


def test_code_in_the_repository_is_never_looked_at(tmp_path):
    (tmp_path / "configuration_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    spec = spec_of(tmp_path, {**LLAMA_31, "auto_map": {"AutoConfig": "configuration_evil.C"}})
    assert spec.num_layers == 32
    assert not (tmp_path / "ran").exists()


COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
WRONG = {
    "hidden_size missing": ({"hidden_size": None}, "hidden_size is missing"),
    "layers in words": ({"num_hidden_layers": "many"}, "num_hidden_layers 'many' is not a whole number"),
    "layers a bool": ({"num_hidden_layers": True}, "num_hidden_layers True is not a whole number"),
    "layers a fraction": ({"num_hidden_layers": 2.5}, "num_hidden_layers 2.5 is not a whole number"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers 0 is not between 1 and"),
    "negative vocabulary": ({"vocab_size": -4}, "vocab_size -4 is not between"),
    "absurd vocabulary": ({"vocab_size": 10**15}, "vocab_size 1000000000000000 is not between"),
    "absurd hidden size": ({"hidden_size": 1 << 40}, "hidden_size"),
    "absurd head_dim": ({"head_dim": 4096}, "head_dim 4096 is not between"),
    "odd head_dim": ({"head_dim": 33}, "head_dim 33 is odd"),
    "kv heads do not divide": ({"num_key_value_heads": 5}, "num_key_value_heads 5 does not divide"),
    "more kv heads than heads": ({"num_key_value_heads": 64}, "num_key_value_heads 64 is not between 1 and 32"),
    "context of none": ({"max_position_embeddings": 0}, "max_position_embeddings"),
    "eps in words": ({"rms_norm_eps": "small"}, "rms_norm_eps 'small' is not a number"),
    "tied, perhaps": ({"tie_word_embeddings": "perhaps"}, "tie_word_embeddings 'perhaps' is neither true nor false"),
    "unknown activation": ({"hidden_act": "swoosh"}, "hidden_act 'swoosh' is not supported; supported: silu"),
    "unknown dtype": ({"torch_dtype": "int3"}, "torch_dtype 'int3' is not supported; supported: bfloat16"),
    "rope unknown": ({"rope_scaling": {"rope_type": "spiral"}}, "rope_scaling.rope_type 'spiral' is not supported"),
    "rope longrope": (
        {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
        "rope_scaling.short_factor None is not 64 positive",
    ),
    "rope without factor": ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
    "rope factors": ({"rope_scaling": {"rope_type": "factors"}}, "rope_scaling.factors None is not 64 positive"),
    "rope a list": ({"rope_scaling": [1]}, "rope_scaling [1] is not an object"),
    "rope backwards": (
        {"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 0.5}},
        "high_freq_factor 0.5 is not above low_freq_factor 1",
    ),
    "theta of zero": ({"rope_theta": 0}, "rope_theta 0 is not between"),
    "theta beyond floats": ({"rope_theta": 10**400}, "rope_theta 1000"),
    "theta infinite": ({"rope_theta": float("inf")}, "rope_theta inf is not a number"),
    "half turned": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    "eos in words": ({"eos_token_id": "end"}, "eos_token_id 'end' is neither a whole number nor a list"),
    "quantized": ({"quantization_config": {"quant_method": "aqlm"}}, "quantized (aqlm)"),
    "quantized somehow": ({"quantization_config": {}}, "quantization_config has no quant_method"),
    "e5m2": ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "fp8 with fmt e5m2 and activation"),
    "no blocks": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64]}},
        "weight_block_size [64] is not the rows and columns of a block",
    ),
    "static blocks": (
        {
            "quantization_config": {
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
                "activation_scheme": "static",
            }
        },
        "fp8 blocks with static activation scales, which must be dynamic; supported are float8 e4m3",
    ),
    "int8": (
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized"}},
        "compressed-tensors without a group that has weights and targets",
    ),
    "weights alone": (
        {"quantization_config": {**COMPRESSED, "config_groups": {"group_0": {"weights": {"strategy": "channel"}}}}},
        "without a group that has weights and targets",
    ),
    "two groups": (
        {"quantization_config": {**COMPRESSED, "config_groups": {"a": {}, "b": {}}}},
        "without a group that has weights and targets",
    ),
    "nvfp4": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}},
        "modelopt with quant_algo NVFP4_AWQ; FP8",
    ),
    "sliding windows": (
        {"architectures": ["LlamaForCausalLM"], "use_sliding_window": True, "sliding_window": 4096},
        "use_sliding_window True is not supported",
    ),
    "some layers with windows": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "only full_attention in all layers",
    ),
    "another architecture": (
        {"architectures": ["LlamaForTokenClassification"]},
        "'LlamaForTokenClassification' is not supported; the nearest supported is LlamaForCausalLM; octavo",
    ),
    "far away architecture": (
        {"architectures": ["WhisperForConditionalGeneration"]},
        "'WhisperForConditionalGeneration' is not supported; the most similar supported name is ",
    ),
    "a class of its own": (
        {"architectures": ["MyLlamaForCausalLM"], "model_type": "llama"},
        "'MyLlamaForCausalLM' is not supported; its model_type is that of LlamaForCausalLM: if both compute the same, "
        "write LlamaForCausalLM into architectures; octavo",
    ),
    "no architecture": ({"architectures": None, "model_type": None}, "architectures is missing"),
    "no architecture of several": ({"architectures": [], "model_type": "bert-generation"}, "architectures is missing"),
    "architectures of numbers": ({"architectures": [3]}, "architectures is missing or not a list of names"),
}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gpt2"])
def test_model_type_stands_in_for_architectures(model_type, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_31, "architectures": None, "model_type": model_type}))
    read = read_spec(ModelFiles("test", directory=tmp_path))
    assert read.architecture.lower().startswith(model_type)


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_named(changes, message, tmp_path):
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, {**LLAMA_31, **changes})
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


BROKEN = {
    "empty": ("", "not valid JSON"),
    "cut": (json.dumps(LLAMA_31)[:100], "not valid JSON"),
    "a list": ("[1, 2]", "holds a JSON list, not an object"),
    "a number": ("7", "not an object"),
    "nested without end": ("[" * 200_000, "not valid JSON"),
    "not text": (b"\xff\xfe\x00binary".decode("latin-1"), "not valid JSON"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files(text, message, tmp_path):
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, text)
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ROPE_FIELDS = ("rope_type", "type", "factor", "factors", "low_freq_factor", "original_max_position_embeddings")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_in_any_field_is_a_model_load_error_or_harmless(tmp_path, data):
    names = st.sampled_from(
        [*LLAMA_31, "head_dim", "quantization_config", "attention_bias", "rope_parameters", "dtype"]
    )
    changes = data.draw(st.dictionaries(names, ANYTHING, min_size=1, max_size=2))
    if data.draw(st.booleans()):
        changes["rope_scaling"] = data.draw(st.dictionaries(st.sampled_from(ROPE_FIELDS), ANYTHING))
    try:
        spec = spec_of(tmp_path, {**LLAMA_31, **changes})
    except ModelLoadError as error:
        assert str(tmp_path) in str(error)
        return
    for layer in spec.layers:
        assert layer.mixer.num_heads % layer.mixer.num_kv_heads == 0 and layer.mixer.head_dim % 2 == 0


def test_a_huge_config_is_not_even_parsed(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelLoadError, match="too large"):
        read_spec(ModelFiles("test", directory=tmp_path))


ULTRABERT = {**SIZES, "architectures": ["UltrabertModel"]}


def test_ultrabert_s_published_files_have_a_window_and_a_base_for_each_layer(tmp_path):
    published = {"attention_windows": [9, 0, 9], "rope_theta": [100.0, 3000.0, 100.0]}
    mixers = [layer.mixer for layer in spec_of(tmp_path, {**ULTRABERT, **published}).layers]
    assert [(mixer.window, mixer.rope.theta) for mixer in mixers] == [(10, 100.0), (None, 3000.0), (10, 100.0)]
    mixers = [layer.mixer for layer in spec_of(tmp_path, {**ULTRABERT, "rope_theta": 100.0}).layers]
    assert [mixer.rope.theta for mixer in mixers] == [100.0] * 3


@pytest.mark.parametrize(
    ("published", "why"),
    [
        ({"attention_windows": [9, 5, 0]}, "attention_windows .* has windows of several sizes"),
        ({"attention_windows": [9, 0]}, "does not name 3 layers"),
        ({"layer_types": 5, "rope_theta": [100.0]}, "layer_types 5"),
        ({"rope_theta": "100"}, "rope_theta '100' is not a number"),
        ({"rope_theta": [100.0, 3000.0]}, "rope_theta .* does not have a number for each of 3 layers"),
        ({"rope_theta": [100.0, 200.0, 3000.0]}, "rope_theta .* differs between layers of one type"),
    ],
)  # fmt: skip
def test_numbers_of_ultrabert_s_layers_that_are_not_computed_are_refused(tmp_path, published, why):
    with pytest.raises(ModelLoadError, match=why):
        spec_of(tmp_path, {**ULTRABERT, **published})
