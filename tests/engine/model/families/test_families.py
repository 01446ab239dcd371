"""Every family gives transformers' answers: alone, beside other requests, and by two ranks; in float32, greedy.

Small models with random weights, in every branch that a family's config.json can take. Llama, Qwen3 and gpt-oss have
tests of their own (test_parity.py, test_gpt_oss.py).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from checkpoints import SIZES, num_parameters
from family_cases import CASES, PUBLISHED
from family_pairs import Pair, load, make_pair, spec_of
from peak_memory import peak_memory
from rank_logits import TOKENS, group_logits, logits_of
from reference import assert_same
from safetensors.torch import load_file, save_file
from stepper import Sequence, Stepper

from octavo_engine import LLM, SamplingParams
from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ModelLoadError
from octavo_engine.model import footprint
from octavo_engine.model.alignment import check_alignment
from octavo_engine.model.checkpoint import safetensors_file
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.configuration.short_contexts import needs_whole_prompts
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import AttentionSpec, ModelSpec, MoESpec, RopeSpec
from octavo_engine.model.tensor_parallel.shard import Shard
from tests.kernels.poison import poisoned

TOKENS_OF_ANSWER = 17
"""More than two windows, and past the end of a block wherever a prompt ends."""
GREEDY = SamplingParams(max_tokens=TOKENS_OF_ANSWER, temperature=0.0, logprobs=20, ignore_eos=True)
ONE_EACH = [
    next(name for name in CASES if CASES[name].family == family)
    for family in dict.fromkeys(c.family for c in CASES.values())
]
MODULE_NAMES = (
    *("qwen3-moe-not-normalised", "phimoe", "granite-moe", "aria-text", "kolibri1", "flint", "ernie-moe", "hy-v3"),
    *(
        "olmo-hybrid",
        "laguna",
        "nemotron-h",
        "lfm2-moe",
        "bailing-hybrid",
        "longcat-flash",
        "axk1",
        "axk2",
        "exaone-moe",
        "mimo-v2",
        "deepseek-v4",
        "gpt-neox",
        "deepseek-v4-windows",
    ),
)
"""Cases whose files have other names, each in another way, if they have the names of transformers' modules."""

FOUR = {**SIZES, "num_hidden_layers": 4}


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Return a function that makes a case's pair by its name, once."""
    folder = tmp_path_factory.mktemp("families")
    return cache(lambda name: make_pair(name, folder))


@pytest.fixture(scope="session")
def decoders(pairs: Callable[[str], Pair]) -> Callable[[str], Any]:
    """Return a function that loads a case's decoder in float32, once, into memory that was NaN: no test changes it."""

    def loaded(name: str) -> Any:
        with poisoned():
            return load(pairs(name), torch.float32)

    return cache(loaded)


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, pairs: Callable[[str], Pair]) -> Pair:
    return pairs(request.param)


def check_answers(pair: Pair, ranks: int) -> None:
    """The same tokens, and log probabilities within 1e-3 at every place of the answers.

    With so few tokens a step that prompts come in chunks. There are blocks for all prompts at once and one more, so
    that requests are preempted where layers see more than a window.
    """
    context, of_prompts = pair.case.context, sum(1 + length // 16 for length in pair.case.lengths)
    blocks = 1 + max(of_prompts, context // 16)
    small = {"max_num_batched_tokens": 48, "max_num_seqs": len(pair.case.lengths), "num_kv_blocks": blocks}
    settings = {"device": "cpu", "dtype": "float32", "max_model_len": context, "tensor_parallel_size": ranks, **small}
    draw = random.Random(1)
    prompts = [[draw.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in pair.case.lengths]
    llm = LLM(str(pair.directory), **settings)
    try:
        alone, batched = llm.generate(prompts[:1], GREEDY), llm.generate(prompts, GREEDY)
    finally:
        llm.close()
    assert len({tuple(answer.token_ids) for answer in batched}) == len(prompts), "the answers should differ"
    assert_same(pair.model, [*alone, *batched], TOKENS_OF_ANSWER)


def test_greedy_answers_alone_and_in_a_batch(pair: Pair) -> None:
    check_answers(pair, 1)


def test_greedy_answers_by_two_ranks(pairs: Callable[[str], Pair]) -> None:
    """A whole engine, for experts; of every case, a group of ranks computes the logits below."""
    check_answers(pairs("mixtral-windows"), 2)


@torch.inference_mode()
def reference_logits(model: Any) -> torch.Tensor:
    """After each of the 24 tokens that all ranks are asked about, float32."""
    logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0].float()
    return logits


@pytest.mark.parametrize("third", range(3))
def test_two_ranks_compute_what_transformers_computes(third: int, pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """After each of 24 tokens the same next one, and all log probabilities within 1e-3; a third of the cases each."""
    asked = {name: pairs(name) for name in list(CASES)[third::3]}
    group_logits(2, [pair.directory for pair in asked.values()], tmp_path)
    for name, pair in asked.items():
        expected, logits = reference_logits(pair.model), torch.load(tmp_path / f"{name}.pt")
        assert torch.equal(logits.argmax(-1), expected.argmax(-1)), name
        assert (logits.log_softmax(-1) - expected.log_softmax(-1)).abs().max() < 1e-3, name


@pytest.mark.parametrize("name", ONE_EACH)
def test_bfloat16_is_as_close_as_transformers(name: str, pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """To what float32 gives; both round, at places of their own."""
    pair = pairs(name)
    exact = reference_logits(pair.model)
    rounded = copy.deepcopy(pair.model).bfloat16()
    rounded.save_pretrained(tmp_path)
    files = ModelFiles("test", directory=tmp_path)
    ours = logits_of(load_model(files, read_spec(files), torch.device("cpu"), torch.bfloat16, lambda *_: None)).float()
    theirs = reference_logits(rounded)
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean() < 0.3 * exact.abs().mean()


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in CASES), *((name, torch.bfloat16) for name in ONE_EACH)]
)
def test_a_step_takes_no_more_memory_than_planned(
    name: str, dtype: torch.dtype, pairs: Callable[[str], Pair], decoders: Callable[[str], Any]
) -> None:
    """Sequences are short, so that attention's scratch, which is planned apart, matters little: it is left out here."""
    decoder = decoders(name) if dtype == torch.float32 else load(pairs(name), dtype)
    stepper = Stepper(decoder)
    with peak_memory() as peak:
        stepper.step([(Sequence([7] * 8), 8) for _ in range(20)], sample=list(range(7, 160, 8)))
    planned = footprint.step_bytes(decoder, 160, 20, footprint.compressed_attention_bytes(decoder, 160, 8))
    widened = decoder.compute.widens * footprint.widening_bytes(decoder, 160)  # an upper bound
    assert planned / 8 < peak.bytes <= planned + widened


@pytest.mark.parametrize("name", ["kimi-linear", "qwen3-next"])
def test_a_prompt_is_planned_with_one_chunk_of_the_delta_rule_at_a_time(
    name: str, pairs: Callable[[str], Pair]
) -> None:
    decoder = load(pairs(name), torch.float32)
    stepper = Stepper(decoder)
    with peak_memory() as peak:
        stepper.step([(Sequence([7] * 240), 240)], sample=[239])
    planned = footprint.step_bytes(decoder, 240, 1, footprint.compressed_attention_bytes(decoder, 240, 240))
    assert planned / 3 < peak.bytes <= planned


def test_zero_experts_take_no_more_memory_than_planned_where_all_tokens_choose_them(
    pairs: Callable[[str], Pair],
) -> None:
    """The choices of a token that are zero experts are so many rows of one expert, whose weights are 0."""
    [one, *_] = load(pairs("longcat-flash"), torch.float32).mixtures()
    mixture = MoE(replace(one.spec, zero_experts=12, top_k=12), one.hidden.size, one.layer, one.options)
    for parameter in mixture.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    correction = cast("torch.Tensor", mixture.correction)
    correction[mixture.spec.num_experts :] = 1e4
    x = torch.randn(512, mixture.hidden.size)
    with peak_memory() as peak:
        mixture(x, None)
    assert peak.bytes <= len(x) * mixture.step_bytes()


def planned_parameters(spec: ModelSpec) -> int:
    """Return the number of parameters behind a plan's bytes, some of which have four bytes instead of two."""
    blueprint = make_blueprint(spec, torch.bfloat16, Shard())
    of_four = sum(parameter.numel() for parameter in blueprint.parameters() if parameter.dtype.itemsize == 4)
    return footprint.weight_bytes(blueprint) // 2 - of_four


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_is_counted_and_filled(
    name: str, pairs: Callable[[str], Pair], decoders: Callable[[str], Any]
) -> None:
    """The plan counts what is allocated, and what transformers has; nothing stays as it was allocated."""
    pair, decoder = pairs(name), decoders(name)
    counted = planned_parameters(read_spec(pair.files))
    assert counted == sum(p.numel() for p in decoder.parameters()) == num_parameters(pair.model)
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("gpt2", "transformer."),
        ("bloom", "transformer."),
        ("opt-norms-after", "model."),
        ("qwen2", "model."),
        ("gpt-neox", "gpt_neox."),
        ("gemma3n", "model."),
        ("falcon-h1", "model."),
        ("axk2", "model."),
        ("mamba", "backbone."),
        ("qwen3-next", "model."),
        ("qwen3-5-moe", "model."),
        ("olmo-hybrid", "model."),
        ("zamba2", "model."),
        ("kimi-linear", "model."),
        ("hy-v4", "model."),
    ],
)
def test_checkpoints_of_the_model_without_its_head(
    name: str, prefix: str, pairs: Callable[[str], Pair], tmp_path: Path
) -> None:
    """GPT-2, BLOOM, OPT and Qwen3-Embedding are published so: names lack a prefix, and old files have masks."""
    pair = pairs(name)
    stored = load_file(pair.directory / "model.safetensors")
    renamed = {tensor.removeprefix(prefix): values for tensor, values in stored.items()}
    if name == "gpt2":
        renamed["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((pair.directory / "config.json").read_bytes())
    found = load(Pair(pair.case, pair.model, tmp_path), torch.float32).state_dict()
    expected = load(pair, torch.float32).state_dict()
    assert all(torch.equal(found[tensor], values) for tensor, values in expected.items())


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_checkpoints_with_the_names_of_transformers_modules(
    name: str, pairs: Callable[[str], Pair], tmp_path: Path
) -> None:
    """transformers saves them so on request: most often with a tensor for all experts of a layer."""
    pair = pairs(name)
    pair.model.save_pretrained(tmp_path, save_original_format=False)
    published, own = (load_file(each / "model.safetensors").keys() for each in (pair.directory, tmp_path))
    assert published != own
    found = load(replace(pair, directory=tmp_path), torch.float32).state_dict()
    expected = load(pair, torch.float32).state_dict()
    assert all(torch.equal(found[tensor], values) for tensor, values in expected.items())


def test_experts_of_another_number_or_layout_in_one_tensor_are_refused(
    pairs: Callable[[str], Pair], tmp_path: Path
) -> None:
    pair = pairs("qwen3-moe-not-normalised")
    pair.model.save_pretrained(tmp_path, save_original_format=False)
    stored, name = load_file(tmp_path / "model.safetensors"), "model.layers.1.mlp.experts.gate_up_proj"
    for other, message in (
        (stored[name].repeat(2, 1, 1), "experts.0.gate_proj.weight (there is model.layers.1.mlp.experts.gate_up_proj)"),
        (stored[name].transpose(1, 2), "experts.0.gate_proj.weight is ["),
    ):
        save_file({**stored, name: other.contiguous()}, tmp_path / "model.safetensors")
        with pytest.raises(ModelLoadError) as caught:
            load(replace(pair, directory=tmp_path), torch.float32)
        assert message in str(caught.value)


def test_a_head_that_is_stored_counts_unless_it_is_a_copy(
    pairs: Callable[[str], Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds whether or not config.json ties it, as in transformers. Headers are read once, for the dtype too."""
    pair = pairs("qwen2")
    stored = load_file(pair.directory / "model.safetensors")
    config = json.loads((pair.directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": None, "torch_dtype": None}))
    monkeypatch.setattr(safetensors_file, "read_header", reads := Mock(wraps=safetensors_file.read_header))
    for difference, tied in ((0.0, True), (0.5, False)):
        head = stored["model.embed_tokens.weight"] + difference
        save_file({**stored, "lm_head.weight": head}, tmp_path / "model.safetensors")
        reads.reset_mock()
        assert read_spec(ModelFiles("test", directory=tmp_path)).head.tied == tied
        assert reads.call_count == 1
        decoder = load(Pair(pair.case, pair.model, tmp_path), torch.float32)
        assert torch.equal(decoder.head.weight, head)


@pytest.mark.parametrize("name", ["nemotron-h", "zamba2"])
def test_no_time_step_is_below_the_least(name: str, pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """So transformers computes prompts. Here all steps are below the least one, which states then take in."""
    pair = pairs(name)
    model = copy.deepcopy(pair.model)
    for parameter_name, values in model.named_parameters():
        if parameter_name.endswith(("dt_bias", "mixer.D", "mamba.D")):
            values.data.fill_(-30.0 if parameter_name.endswith("dt_bias") else 0.0)
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    found = logits_of(load(Pair(pair.case, model, tmp_path), torch.float32))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_layers_that_predict_further_tokens_are_not_read(pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """DeepSeek V3 and GLM-4.5 are published so; a tensor that is no part of such a layer is still an error."""
    pair = pairs("deepseek-v3")
    stored = load_file(pair.directory / "model.safetensors")
    config = json.loads((pair.directory / "config.json").read_text())
    further = {"model.layers.3.eh_proj.weight": torch.ones(4, 4), "mtp.norm.weight": torch.ones(4)}
    save_file({**stored, **further}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    load(Pair(pair.case, pair.model, tmp_path), torch.float32)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    with pytest.raises(ModelLoadError, match=r"model\.layers\.3\.eh_proj\.weight"):
        load(Pair(pair.case, pair.model, tmp_path), torch.float32)


@pytest.mark.parametrize("name", ["gpt2", "codegen", "falcon-two-norms"])
@pytest.mark.parametrize(("scheme", "error"), [("int8", 0.03), ("fp8", 0.12)])
def test_weights_in_unusual_layouts_are_quantized_while_they_are_loaded(
    name: str, scheme: str, error: float, pairs: Callable[[str], Pair]
) -> None:
    """Transposed, or query, key and value in turn: logits differ as little as by rounding."""
    pair = pairs(name)
    spec = quantized_online(read_spec(pair.files), scheme)
    logits = logits_of(load_model(pair.files, spec, torch.device("cpu"), torch.float32, lambda *_: None))
    expected = reference_logits(pair.model)
    assert 0 < (logits - expected).norm() < error * expected.norm()


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_published_models_have_as_many_parameters(architecture: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, architecture)
    assert planned_parameters(spec) == PUBLISHED[architecture][1]
    assert spec.dtype == torch.bfloat16


def windows_of(spec: ModelSpec) -> list[int | None]:
    return [layer.mixer.window for layer in spec.layers]


def test_which_layers_have_a_window(tmp_path: Path) -> None:
    def windows(architecture: str, **changes: Any) -> list[int | None]:
        return windows_of(spec_of(tmp_path, architecture, **changes))

    assert windows("MistralForCausalLM", sliding_window=None) == [None] * 32, "null is none"
    assert windows("MistralForCausalLM", sliding_window=...) == [4096] * 32, "that of the first version"
    assert windows("Qwen2ForCausalLM") == [None] * 28, "though the file states a size"
    late = {"use_sliding_window": True, "max_window_layers": 20}
    assert windows("Qwen2ForCausalLM", **late) == [None] * 20 + [131072] * 8
    assert windows("Phi3ForCausalLM") == [2047] * 32
    assert windows("Cohere2ForCausalLM") == [4096, 4096, 4096, None] * 8
    assert windows("Cohere2ForCausalLM", sliding_window_pattern=2) == [4096, None] * 16
    assert windows("Gemma2ForCausalLM") == [4096, None] * 13
    assert windows("Qwen3MoeForCausalLM", sliding_window=64) == [None] * 48
    assert windows("Qwen3MoeForCausalLM", sliding_window=64, use_sliding_window=True) == [64] * 48
    assert windows("MixtralForCausalLM", sliding_window=64) == [64] * 32


@pytest.mark.parametrize(
    ("architecture", "most"), [("DeepseekV32ForCausalLM", "index_topk"), ("DeepseekV4ForCausalLM", "index_topk")]
)
def test_prompts_whose_indexer_has_few_heads_are_computed_in_one_step(
    architecture: str, most: str, tmp_path: Path
) -> None:
    """Many of its scores are exactly 0, and `topk` takes others of these where a prompt is computed in two steps."""
    sizes = {**FOUR, "head_dim": 64, "q_lora_rank": 16, "first_k_dense_replace": 4}

    def whole(heads: int, kept: int) -> bool:
        return needs_whole_prompts(spec_of(tmp_path, architecture, **sizes, index_n_heads=heads, **{most: kept}))

    assert whole(4, 3)
    assert not whole(8, 3)
    assert not whole(4, FOUR["max_position_embeddings"]), "the indexer takes all tokens"


def test_contexts_in_which_big_bird_attends_to_all_tokens(tmp_path: Path) -> None:
    def longest(**changes: Any) -> int:
        return spec_of(tmp_path, "BigBirdForCausalLM", **{**FOUR, "is_decoder": True, **changes}).max_position

    everywhere = FOUR["max_position_embeddings"]
    assert longest(max_position_embeddings=4096) == 704, "11 blocks of 64"
    assert longest(block_size=2, num_random_blocks=2) == 18
    assert longest(block_size=2, attention_type="original_full") == longest(block_size=everywhere) == everywhere


def test_what_config_json_leaves_out(tmp_path: Path) -> None:
    """The configuration classes' own values, which published files rely on."""
    whole = {**FOUR, "head_dim": 16, "attn_layer_indices": [0], "partial_rotary_factor": 1.0}
    bamba = spec_of(tmp_path, "BambaForCausalLM", **whole)
    assert bamba.layers[0].mixer.rope.rotary_dim == 8, "transformers does not read it there"
    limit = {"time_step_limit": [0, 1e30]}  # JSON has no infinity
    assert spec_of(tmp_path, "BambaForCausalLM", **whole, **limit) == bamba
    electra = spec_of(tmp_path, "ElectraForCausalLM", is_decoder=True, embedding_size=256, hidden_act="gelu")
    assert (electra.hidden_size, electra.layers[0].mixer.num_heads) == (256, 4)
    assert electra.layers[0].feed_forward.intermediate_size == 1024
    gemma = spec_of(tmp_path, "Gemma2ForCausalLM")
    assert (gemma.layers[0].mixer.softcap, gemma.head.softcap, gemma.head.tied) == (50, 30, True)
    assert gemma.layers[0].mixer.scale == 256**-0.5
    capless = spec_of(tmp_path, "Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (capless.layers[0].mixer.softcap, capless.head.softcap) == (None, None)
    assert spec_of(tmp_path, "Cohere2ForCausalLM").head.tied
    assert [layer.mixer.rope is None for layer in spec_of(tmp_path, "Cohere2ForCausalLM").layers[:4]] == [
        *[False] * 3,
        True,
    ]
    mixtral = spec_of(tmp_path, "MixtralForCausalLM", rope_theta=..., num_experts_per_tok=...)
    assert mixtral.layers[0].mixer.rope == RopeSpec(1e6)
    assert isinstance(mixtral.layers[0].feed_forward, MoESpec) and mixtral.layers[0].feed_forward.top_k == 2
    kernels = {**FOUR, "short_conv_kernel_size": 3, "linear_conv_kernel_dim": 5}
    assert spec_of(tmp_path, "BailingHybridForCausalLM", **kernels).layers[0].mixer.width == 5, "transformers' own name"
    renamed = {"num_experts": ..., "num_local_experts": 128}
    assert spec_of(tmp_path, "Qwen3MoeForCausalLM", **renamed) == spec_of(tmp_path, "Qwen3MoeForCausalLM")
    half = spec_of(tmp_path, "StableLmForCausalLM", partial_rotary_factor=...)
    assert half.layers[0].mixer.rope == RopeSpec(10000.0, rotary_dim=16), "a quarter of 64"


def test_queries_of_low_rank_in_ling_3_have_its_own_names(tmp_path: Path) -> None:
    """transformers computes them from 5.24 on; before, `q_lora_rank` had no effect."""
    spec = spec_of(tmp_path, "BailingHybridForCausalLM", **FOUR, layer_group_size=4, q_lora_rank=16)
    names = {tensor.name for tensor in make_blueprint(spec, torch.bfloat16, Shard()).tensors()}
    parts = ("q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight")
    assert names >= {f"model.layers.3.attention.{part}" for part in parts}


def test_classes_that_only_published_files_name(tmp_path: Path) -> None:
    """For these transformers finds its own class by `model_type`."""
    sizes = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    for published, own in (("PhiMoE", "Phimoe"), ("MPT", "Mpt"), ("Step3p5", "Step3p7Text")):
        fields = {**FOUR, **sizes, **PUBLISHED.get(f"{own}ForCausalLM", ({}, 0))[0]}
        found = [spec_of(tmp_path, f"{name}ForCausalLM", **fields) for name in (published, own)]
        assert found[0] == found[1]


def test_when_olmo_hybrid_rotates(tmp_path: Path) -> None:
    """A base that is null means no RoPE; one in the older field `rope_theta` counts as in `rope_parameters`."""

    def rope(**changes: Any) -> RopeSpec | None:
        config = {**SIZES, "layer_types": ["linear_attention", "linear_attention", "full_attention"]}
        spec = spec_of(tmp_path, "OlmoHybridForCausalLM", **config, **{"rope_theta": ..., **changes})
        found: RopeSpec | None = spec.layers[2].mixer.rope
        return found

    assert rope() == rope(rope_parameters=None) == RopeSpec(10000.0), "the base of the configuration class"
    assert rope(rope_theta=None) is rope(rope_parameters={"rope_theta": None, "rope_type": "default"}) is None
    assert rope(rope_theta=500.0, rope_scaling=None) == rope(rope_parameters={"rope_theta": 500.0}) == RopeSpec(500.0)
    assert rope(rope_parameters={"rope_type": "default"}) == RopeSpec(10000.0), "the base of the configuration class"


@pytest.mark.parametrize("architecture", ["AXK1ForCausalLM", "AXK2ForCausalLM"])
def test_which_layers_of_ax_k_have_experts(architecture: str, tmp_path: Path) -> None:
    """Published files have `first_k_dense_replace` and `moe_layer_freq`, of which transformers makes a list."""

    def experts(**changes: int) -> list[bool]:
        spec = spec_of(tmp_path, architecture, **{**FOUR, "num_hidden_layers": 5, "num_key_value_heads": 8}, **changes)
        return [isinstance(layer.feed_forward, MoESpec) for layer in spec.layers]

    assert experts() == [False, True, True, True, True]
    assert experts(first_k_dense_replace=2) == [False, False, True, True, True]
    assert experts(first_k_dense_replace=0, moe_layer_freq=2) == [True, False, True, False, True]


def test_which_layers_of_olmo_hybrid_attend_by_default(tmp_path: Path) -> None:
    def attend(layers: int) -> list[bool]:
        spec = spec_of(tmp_path, "OlmoHybridForCausalLM", **{**SIZES, "num_hidden_layers": layers})
        return [isinstance(layer.mixer, AttentionSpec) for layer in spec.layers]

    assert attend(5) == [False, False, False, True, False]
    assert attend(3) == [False, False, True], "one at least"


def test_how_mistral_4_says_which_share_of_a_head_rotates(tmp_path: Path) -> None:
    """As transformers reads it: the older `rope_scaling` takes the place of all that the class has by default."""
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64}
    rope, half = {**yarn, "llama_4_scaling_beta": 0.4}, {"partial_rotary_factor": 0.5}

    def read(**changes: Any) -> ModelSpec:
        return spec_of(tmp_path, "Mistral4ForCausalLM", **FOUR, **changes)

    expected = read(rope_parameters={**rope, **half})
    assert expected.layers[0].mixer.rope.theta == 500.0
    assert read(rope_scaling=rope, **half) == read(rope_scaling={**rope, **half}) == expected
    assert read(rope_parameters=rope, partial_rotary_factor=0.25) == expected, "it has no effect there"
    assert read(partial_rotary_factor=0.5) == read() != expected


def test_what_gpt_neox_calls_its_rope(tmp_path: Path) -> None:
    """`rotary_pct` and `rotary_emb_base`; transformers reads no other names of them beside `rope_parameters`."""

    def rope(**changes: Any) -> RopeSpec:
        fields = {**FOUR, "hidden_size": 128, "rope_theta": ..., **changes}
        found: RopeSpec = spec_of(tmp_path, "GPTNeoXForCausalLM", **fields).layers[0].mixer.rope
        return found

    assert rope(rotary_pct=0.5, rotary_emb_base=500) == RopeSpec(500.0, rotary_dim=8)
    assert rope(rope_theta=500.0, partial_rotary_factor=0.5) == rope() == RopeSpec(10000.0, rotary_dim=4)
    said = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}
    assert rope(rope_parameters=said) == rope(rope_parameters=said, rope_scaling=said) == RopeSpec(300.0, rotary_dim=8)


def test_a_plan_computes_no_table_of_positions(tmp_path: Path) -> None:
    """config.json may claim a context for which the table would take more memory than there is."""
    longest = 1 << 20
    changes = {**FOUR, "is_decoder": True, "max_position_embeddings": longest}
    specs = [spec_of(tmp_path, architecture, **changes) for architecture in ("RoFormerForCausalLM", "XGLMForCausalLM")]
    with peak_memory() as peak:
        for spec in specs:
            make_blueprint(spec, torch.float32, Shard())
    assert peak.bytes < longest


def test_sines_that_a_roformer_checkpoint_does_not_hold_are_computed(tmp_path: Path) -> None:
    """The case `roformer` has stored ones, which differ from those."""
    import transformers

    pair = make_pair("roformer", tmp_path)
    file = pair.directory / "model.safetensors"
    tensors = load_file(file)
    del tensors["roformer.encoder.embed_positions.weight"]
    save_file(tensors, file, {"format": "pt"})
    model = transformers.RoFormerForCausalLM.from_pretrained(pair.directory).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    assert (logits_of(load(pair, torch.float32)).log_softmax(-1) - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("MiniMaxM2ForCausalLM", "minimax_m2"), ("MiniMaxM3VLForCausalLM", "minimax_m3_vl_text")],
)
def test_where_rotary_dim_of_minimax_counts(architecture: str, kind: str, tmp_path: Path) -> None:
    """In M2 unless `partial_rotary_factor` is there, in M3 nowhere, however RoPE is given."""
    import transformers

    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    for rope in (
        {"rope_theta": 500.0},
        {"rope_theta": 500.0, "partial_rotary_factor": 0.5},
        {"rope_scaling": linear},
        {"rope_parameters": linear},
        {"rope_parameters": {**linear, "partial_rotary_factor": 0.5}},
    ):
        fields = {**FOUR, "model_type": kind, "rope_theta": ..., "head_dim": 16, "rotary_dim": 4, **rope}
        spec = spec_of(tmp_path, architecture, **fields)
        converted = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
        share = converted.get("partial_rotary_factor", 1)
        assert (spec.layers[0].mixer.rope.rotary_dim or 16) == 16 * share


def test_what_else_transformers_reads_about_rope(tmp_path: Path) -> None:
    """`truncate` counts beside the types of layers alone; the rotated share may stand outside of the object."""

    def read(architecture: str, **changes: Any) -> tuple[RopeSpec, ...]:
        return spec_of(tmp_path, architecture, **{**FOUR, "hidden_size": 128}, **changes).ropes

    yarn = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False}
    assert not read("LlamaForCausalLM", rope_parameters=yarn)[0].truncate
    sizes = {"num_experts": 4, "sliding_window": 8}
    assert read("Cohere2MoeForCausalLM", **sizes, rope_scaling=yarn) == read("Cohere2MoeForCausalLM", **sizes)
    types = {"sliding_attention": yarn, "full_attention": yarn}
    assert read("Olmo3ForCausalLM", sliding_window=8, rope_parameters=types)[0].truncate
    share = {"partial_rotary_factor": 0.5}
    rope = {"rope_type": "proportional", "rope_theta": 100.0}
    assert read("LlamaForCausalLM", rope_parameters=rope, **share) == (RopeSpec(100.0, "proportional", proportion=0.5),)
    assert read("LlamaForCausalLM", rope_parameters={**rope, **share})[0].proportion == 0.5


def test_rope_in_files_from_before_transformers_5(tmp_path: Path) -> None:
    """As the transformers that wrote them computed it; see "Older fields about RoPE" in docs/how-to/add-a-model.md."""

    def ropes(architecture: str, **changes: Any) -> list[Any]:
        sizes = {**FOUR, "hidden_size": 128, "sliding_window": 8, "num_kv_shared_layers": 0}
        spec = spec_of(tmp_path, architecture, **{**sizes, **changes})
        by_window = {layer.mixer.window: layer.mixer.rope for layer in spec.layers}
        return [by_window[window] for window in sorted(by_window, key=bool)]

    linear = {"type": "linear", "factor": 4.0}
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    whole, windowed = RopeSpec(300.0, "linear", 4.0), RopeSpec(300.0)
    assert ropes("Olmo3ForCausalLM", **layers, rope_theta=300.0, rope_scaling=linear) == [whole, windowed]
    bases = {"rope_theta": 300.0, "rope_local_base_freq": 20.0}
    for architecture in ("Gemma3ForCausalLM", "Gemma3nForCausalLM"):
        assert ropes(architecture, **layers, **bases, rope_scaling=linear) == [whole, RopeSpec(20.0)]
    assert ropes("ApertusForCausalLM", rope_theta=300.0, rope_scaling=None) == [windowed]
    assert ropes("ApertusForCausalLM", rope_theta=300.0)[0].kind == "llama3"
    assert ropes("CwmForCausalLM", **layers, rope_theta=300.0, rope_scaling=None)[0].kind == "llama3"
    for architecture in ("ModernBertDecoderForCausalLM", "ModernBertModel"):
        bases = {"rope_theta": ..., "global_rope_theta": 300.0, "local_rope_theta": 20.0, **layers}
        scaled = ropes(architecture, **bases, rope_scaling=linear)
        assert scaled == [whole, RopeSpec(20.0, "linear", 4.0)]
        assert ropes(architecture, **{**bases, "local_rope_theta": None}) == [windowed, windowed]


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_the_first_phi3_called_longrope_by_other_names(name: str, tmp_path: Path) -> None:
    def read(name: str) -> ModelSpec:
        scaling = {"type": name, "short_factor": [1.1] * 48, "long_factor": [2.0] * 48}
        return spec_of(tmp_path, "Phi3ForCausalLM", rope_scaling=scaling)

    assert read(name) == read("longrope")


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("HrmTextForCausalLM", {"L_cycles": 5}),
        ("ZambaForCausalLM", {"num_hidden_layers": 12, "layers_block_type": ["mamba"] * 9 + ["hybrid"] * 3}),
    ],
)
def test_layers_far_behind_the_one_whose_weights_they_use(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Models of the published depths ended the start with an IndexError, as one layer of each kind was checked."""
    check_alignment(spec_of(tmp_path, architecture, **{**FOUR, **changes}), 2)


@pytest.mark.parametrize("architecture", ["Step3p7TextForCausalLM", "Gemma4ForCausalLM"])
def test_numbers_of_layers_may_have_leading_zeros(architecture: str, tmp_path: Path) -> None:
    """transformers writes them so in models of more than ten layers."""
    field = "num_attention_heads" if architecture.startswith("Step") else "num_key_value_heads"
    plain, padded = (
        spec_of(tmp_path, architecture, **FOUR, per_layer_config={name: {field: 4}}) for name in ("2", "002")
    )
    assert padded == plain
    assert plain.layers[2] != plain.layers[1]


def test_laguna_without_a_kind_of_gates_has_one_for_each_number(tmp_path: Path) -> None:
    """transformers takes every value but true and per-head so."""
    no_kind, numbers = (spec_of(tmp_path, "LagunaForCausalLM", **FOUR, gating=each) for each in (False, "per-element"))
    assert no_kind == numbers != spec_of(tmp_path, "LagunaForCausalLM", **FOUR, gating=True)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "layers": ("Gemma2ForCausalLM", {"layer_types": ["full_attention"] * 3}, "does not name 26 layers"),
    "kinds": ("Cohere2ForCausalLM", {"layer_types": ["chunked_attention"] * 32}, "layer_types"),
    "both directions": (
        "Gemma2ForCausalLM",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention True is not supported",
    ),
    "experts": (
        "Qwen3MoeForCausalLM",
        {"num_experts_per_tok": 129},
        "num_experts_per_tok 129 is not between 1 and 128",
    ),
    "heads that no memory holds": (
        "StableLmForCausalLM",
        {"num_attention_heads": 65_536, "num_key_value_heads": 65_536, "head_dim": 1024},
        "num_attention_heads 65536 of head_dim 1024 are wider than",
    ),
    "more experts than any model has": (
        "MixtralForCausalLM",
        {"num_local_experts": 60_000},
        "num_local_experts 60000 is not between 1 and 4096",
    ),
    "unknown activation": ("MixtralForCausalLM", {"hidden_act": "prelu"}, "hidden_act 'prelu' is not supported"),
    "factors": (
        "Phi3ForCausalLM",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 47}},
        "long_factor",
    ),
    "an encoder that is to write": ("BertLMHeadModel", {"is_decoder": False}, "is_decoder False is not supported"),
    "what else BERT reads": (
        "BertLMHeadModel",
        {"is_decoder": True, "add_cross_attention": True},
        "add_cross_attention True is not supported",
    ),
    "another size of heads": (
        "YoutuForCausalLM",
        {"head_dim": 2},
        "head_dim 2 is not qk_rope_head_dim 64, the dimensions that rotate",
    ),
    "a size that is not the sum of its parts": (
        "Mistral4ForCausalLM",
        {"head_dim": 4},
        "head_dim 4 has too few dimensions that rotate for qk_rope_head_dim 64",
    ),
    "another attention": (
        "BigBirdForCausalLM",
        {"is_decoder": True, "attention_type": "random"},
        "attention_type 'random' is not supported",
    ),
    "another pooling": ("CohereCompassForCausalLM", {"pooling": "mean"}, "pooling 'mean' is not supported"),
    "no bound": ("HYV4ForCausalLM", {**FOUR, "swiglu_limit": 0.0}, "swiglu_limit 0.0 is not between"),
    "n-grams": ("Qwen4ExpForCausalLM", {"ple_layer_ids": [1]}, "ple_layer_ids [1] is not supported"),
    "blocks of an indexer": (
        "Qwen4ExpForCausalLM",
        {**FOUR, "indexer_budget": 63, "indexer_compress_ratio": 4},
        "indexer_budget 63 is not a multiple of indexer_compress_ratio 4",
    ),
    "no blocks of an indexer": ("Qwen4ExpForCausalLM", FOUR, "indexer_budget is missing"),
    "pools of an indexer": (
        "Glm5NextTextForCausalLM",
        {**FOUR, "index_kpool": 6},
        "index_topk 2048 is not a multiple of index_kpool 6",
    ),
    "an indexer without the last tokens": (
        "Glm5NextTextForCausalLM",
        {**FOUR, "index_kpool_always_select_tail": False},
        "index_kpool_always_select_tail False is not supported",
    ),
    "a choice that no layer before has": (
        "Glm5NextTextForCausalLM",
        {**FOUR, "indexer_types": ["full", "full", "full", "shared"]},
        "layer 2 has no choice to share",
    ),
    "one layer's own heads": (
        "LlamaForCausalLM",
        {**FOUR, "per_layer_config": {"1": {"head_dim": 4}}},
        "per_layer_config {",
    ),
    "another gate": ("Qwen4ExpForCausalLM", {**FOUR, "hidden_act": "gelu"}, "output_gate_type 'gelu' is not supported"),
    "one layer's own size": (
        "Dots3NoteForCausalLM",
        {**FOUR, "per_layer_config": {"2": {"hidden_size": 32}}},
        "per_layer_config.2.hidden_size 32 is not supported for one layer alone",
    ),
    "a RoPE that is missing": (
        "Dots3NoteForCausalLM",
        {**FOUR, "rope_parameters": {"indexed_attention": {"rope_theta": 1e4}}},
        "rope_parameters.sliding_attention None is missing",
    ),
    "a share that contradicts": (
        "Mistral4ForCausalLM",
        {"rope_scaling": {"rope_type": "default", "rope_theta": 1e4}, "partial_rotary_factor": 0.25},
        "partial_rotary_factor 0.25 is not qk_rope_head_dim 64 of heads of 128",
    ),
    "null that is false in transformers": (
        "DeepseekV3ForCausalLM",
        {**FOUR, "rope_interleave": None},
        "rope_interleave None is neither true nor false",
    ),
    "no bias of a convolution in transformers": (
        "FalconH1ForCausalLM",
        {**FOUR, "mamba_conv_bias": None},
        "mamba_conv_bias None is neither true nor false",
    ),
    "null that is another scale in transformers": (
        "GraniteMoeForCausalLM",
        {**FOUR, "attention_multiplier": None},
        "attention_multiplier is missing",
    ),
    "gates that are numbers": ("Step3p7TextForCausalLM", {**FOUR, "gating": False}, "gating False is not supported"),
    "bounds": (
        "Step3p7TextForCausalLM",
        {**FOUR, "swiglu_limits": [1.0]},
        "swiglu_limits [1.0] is not 4 numbers or null",
    ),
    "layers with experts": (
        "Step3p7TextForCausalLM",
        {**FOUR, "moe_layers_enum": "1,x"},
        "moe_layers_enum '1,x' is not a list",
    ),
    "a layer of thousands of digits": (
        "Step3p7TextForCausalLM",
        {**FOUR, "moe_layers_enum": "9" * 5000},
        "is not a list of numbers of layers",
    ),
    "a bound that is no float": (
        "Step3p7TextForCausalLM",
        {**FOUR, "swiglu_limits_shared": [10**400] * 4},
        "is not 4 numbers or null, none above 1e+06",
    ),
    "whose latents are read": (
        "MistralLarge4TextForCausalLM",
        {**FOUR, "kv_source_layers": [0, 0, 1, 0]},
        "kv_source_layers [0, 0, 1, 0] is not supported",
    ),
    "latents of a layer that rotates": (
        "MistralLarge4TextForCausalLM",
        {**FOUR, "kv_source_layers": [0, 1, 2, 2], "no_rope_layers": [1, 1, 1, 0]},
        "kv_source_layers [0, 1, 2, 2] is not supported",
    ),
    "biases beside one tensor": (
        "HrmTextForCausalLM",
        {"attention_bias": True},
        "attention_bias True is not supported",
    ),
    "limited time steps": (
        "BambaForCausalLM",
        {**FOUR, "attn_layer_indices": [0], "time_step_limit": [0, 0.5]},
        "time_step_limit [0, 0.5] is not supported, only [0, Infinity]",
    ),
    "raised time steps": (
        "NemotronHForCausalLM",
        {"hybrid_override_pattern": "M*", "time_step_min": 0.01},
        "time_step_min 0.01 is not supported, only up to 0.001",
    ),
    "more layers than any model has": ("HrmTextForCausalLM", {"H_cycles": 64, "num_hidden_layers": 17}, "H_cycles 64"),
    "slices as in training": (
        "BloomForCausalLM",
        {**FOUR, "pretraining_tp": 4, "slow_but_exact": True},
        "slow_but_exact True is not supported",
    ),
    "heads do not divide": (
        "OPTForCausalLM",
        {**FOUR, "num_attention_heads": 24},
        "hidden_size 64 is not a multiple of num_attention_heads 24",
    ),
    "an odd number of rotated dimensions": (
        "PhiForCausalLM",
        {**FOUR, "partial_rotary_factor": 0.4},
        "partial_rotary_factor 0.4 rotates an odd number of 8 dimensions",
    ),
    "two objects about RoPE": (
        "LlamaForCausalLM",
        {**FOUR, "rope_parameters": {"rope_theta": 5e2}, "rope_scaling": {"type": "linear", "factor": 2.0}},
        "is not what rope_parameters says",
    ),
    "a scale": ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling 0 is not between"),
}


@pytest.mark.parametrize(("architecture", "changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_named(architecture: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, architecture, **changes)
    assert message in str(caught.value)
