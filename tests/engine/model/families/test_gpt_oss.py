"""gpt-oss: experts, sinks, windows and YaRN give transformers' logits; MXFP4 is read as its definition says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import reference_model, save
from compared_logits import assert_same, random_tokens, reference_logits
from loaded import load
from peak_memory import peak_memory
from rank_logits import group_logits, logits_of
from reference import assert_same as assert_same_answers
from safetensors.torch import load_file, save_file
from stepper import Sequence, Stepper

from bench.gpu.shapes import TINY_GPT_OSS, write_checkpoint
from octavo_engine import LLM, SamplingParams
from octavo_engine.cli import main
from octavo_engine.engine.startup.resolved_config import attention_task, make_blueprint
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.experts.moe_autotune import torch_mixture_of_experts
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model import footprint
from octavo_engine.model.alignment import check_alignment
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.adapters.expert_lora import ExpertAdapters
from octavo_engine.model.layers.embeddings.rope import inverse_frequencies
from octavo_engine.model.layers.operations import device_support
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.experts_in_turn import ExpertsInTurn
from octavo_engine.model.layers.operations.products import torch_product
from octavo_engine.model.loader import load_model
from octavo_engine.model.quantization.mxfp4 import E2M1, E8M0
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec, MoESpec
from octavo_engine.model.tensor_parallel.collectives import Collectives
from octavo_engine.model.tensor_parallel.shard import Shard
from tests.kernels.poison import poisoned

CPU = torch.device("cpu")
CHANGES: dict[str, Any] = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "swiglu_limit": 1.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
    "eos_token_id": 200002,
}


def random_model(**changes: Any) -> Any:
    """A reference model whose sinks take a good part of attention."""
    model = reference_model("GptOss", **{**CHANGES, **changes})
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, mean=1.0, std=2.0)
    return model


def moe_of(spec: ModelSpec) -> MoESpec:
    moe = spec.layers[0].feed_forward
    assert isinstance(moe, MoESpec)
    return moe


def spec_of(directory: Path, **changes: Any) -> ModelSpec:
    (directory / "config.json").write_text(json.dumps({**GPT_OSS_20B, **changes}))
    return read_spec(ModelFiles("test", directory=directory))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder]:
    model = random_model()
    return model, load(save(model, tmp_path_factory.mktemp("gpt-oss")))


def test_whole_prompt_and_chunks_of_it(pair: tuple[Any, Decoder]) -> None:
    model, decoder = pair
    tokens = random_tokens(100, 1)
    expected = reference_logits(model, tokens)
    (whole,) = Stepper(decoder).step([(Sequence(tokens), 100)])
    assert_same(whole, expected)
    sequence, stepper = Sequence(tokens), Stepper(decoder)
    assert_same(torch.cat([stepper.step([(sequence, n)])[0] for n in (7, 9, 16, 1, 40, 27)]), expected)


def test_decodes_beside_a_chunk(pair: tuple[Any, Decoder]) -> None:
    model, decoder = pair
    stepper = Stepper(decoder)
    short, long = Sequence(random_tokens(30, 2)), Sequence(random_tokens(90, 3))
    first, *_ = stepper.step([(short, 10)])
    got = [stepper.step([(short, 1), (long, 4 if turn < 19 else 14)]) for turn in range(20)]
    assert_same(torch.cat([first, *(logits for logits, _ in got)]), reference_logits(model, short.tokens))
    assert_same(torch.cat([logits for _, logits in got]), reference_logits(model, long.tokens))


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"] * 4},
        {"layer_types": ["sliding_attention"] * 4},
        {"num_experts_per_tok": 1, "attention_bias": False, "tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "swiglu_alpha": 0.7},
    ],
    ids=["no windows", "windows alone", "one expert", "no yarn"],
)
def test_other_configurations(changes: dict[str, Any], tmp_path: Path) -> None:
    model = random_model(**changes)
    tokens = random_tokens(40, 4)
    (logits,) = Stepper(load(save(model, tmp_path))).step([(Sequence(tokens), 40)])
    assert_same(logits, reference_logits(model, tokens))


def test_bfloat16_is_as_close_as_transformers(tmp_path: Path) -> None:
    """transformers' router, too, may choose another expert for a rounding."""
    model = random_model()
    decoder = load(save(model, tmp_path, dtype=torch.bfloat16), dtype=torch.bfloat16)
    tokens = random_tokens(100, 6)
    (logits,) = Stepper(decoder).step([(Sequence(tokens), 100)])
    exact = reference_logits(model, tokens)
    theirs = reference_logits(model.bfloat16(), tokens).float()
    assert (logits - exact).abs().mean() < 1.25 * (theirs - exact).abs().mean() < 0.2 * exact.abs().mean()


def test_the_whole_engine_answers_as_transformers(tmp_path: Path, tiny_model: Path) -> None:
    """Alone, from the prefix cache, and in a batch with so few blocks that requests are preempted."""
    model = random_model()
    directory = save(model, tmp_path)
    (directory / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    settings = {"num_kv_blocks": 12, "max_model_len": 192, "max_num_batched_tokens": 24, "max_num_seqs": 4}
    llm = LLM(str(directory), device="cpu", dtype="float32", **settings)
    greedy = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True, logprobs=20)
    prompts = [random_tokens(length, length) for length in (1, 16, 33, 100)]
    first, again = (llm.generate(prompts[-1:], greedy)[0] for _ in range(2))
    batched = llm.generate(prompts, greedy)
    report = llm.report()
    llm.close()
    assert_same_answers(model, [first, again, *batched])
    assert again.cached_tokens == 96
    assert report.preemptions > 0


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("family", ["Llama", "GptOss"])
def test_yarn_is_that_of_transformers(family: str, truncate: bool, tmp_path: Path) -> None:
    rope = {**CHANGES["rope_parameters"], "truncate": truncate, "beta_fast": 16.0}
    model = reference_model(family, **{**(CHANGES if family == "GptOss" else {}), "rope_parameters": rope})
    spec = read_spec(ModelFiles("test", directory=save(model, tmp_path)))
    theirs = model.model.rotary_emb
    (rope,) = spec.ropes
    assert torch.equal(inverse_frequencies(rope, spec.layers[0].mixer.head_dim), theirs.inv_freq)
    assert rope.attention_factor == theirs.attention_scaling != 1


def test_the_published_config(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    full, sliding = spec.kv_groups
    assert (full.kind, full.layers, full.window) == ("full", tuple(range(1, 24, 2)), None)
    assert (sliding.kind, sliding.layers, sliding.window) == ("sliding", tuple(range(0, 24, 2)), 128)
    mixer, moe = spec.layers[0].mixer, moe_of(spec)
    assert mixer.sinks and mixer.qkv_bias and mixer.output_bias
    assert moe.quantization is not None
    assert (moe.num_experts, moe.top_k, moe.limit, moe.alpha) == (32, 4, 7.0, 1.702)
    assert spec.dtype == torch.bfloat16, "which the published config does not say"
    (rope,) = spec.ropes
    assert rope.kind == "yarn" and not rope.truncate
    weights = footprint.weight_bytes(make_blueprint(spec, torch.bfloat16, Shard()))
    assert round(weights / 2e7) == 2091, "20.9 billion are published"
    bare = spec_of(tmp_path, rope_scaling=None, head_dim=None, quantization_config=None)
    assert (bare.ropes, bare.layers[0].mixer.head_dim) == (spec.ropes, 64), "the family's own defaults"
    assert moe_of(bare).quantization is None
    assert spec_of(tmp_path, rope_scaling={"rope_type": "linear", "factor": 2.0}).ropes[0].kind == "linear"


def test_a_plan_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec_of(tmp_path)
    assert main(["plan", str(tmp_path), "--gpu-memory", "80GiB"]) == 0
    table = capsys.readouterr().out
    assert "12.8 GiB" in table, "experts as they are stored"
    assert "24.0 KiB" in table, "12 layers, 8 heads of 64, keys and values in bfloat16"
    assert main(["plan", str(tmp_path), "--gpu-memory", "12GiB"]) == 4
    advice = capsys.readouterr().err
    assert "a device with" in advice
    assert "--quantization" not in advice and "more GPUs" in advice


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"layer_types": ["full_attention"] * 3}, "does not name 24 layers"),
    "kinds": ({"layer_types": ["chunked_attention"] * 24}, "only full_attention and sliding_attention in all layers"),
    "experts": ({"num_experts_per_tok": 33}, "num_experts_per_tok 33 is not between 1 and 32"),
    "fp8": ({"quantization_config": {"quant_method": "fp8"}}, "quantized (fp8), which this version of Octavo does not"),
    "some experts": (
        {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.3.mlp.experts"]}},
        "which are all in mxfp4 or none",
    ),
    "betas": (
        {"rope_scaling": {**GPT_OSS_20B["rope_scaling"], "beta_slow": 40.0}},  # type: ignore[dict-item]
        "beta_fast 32.0 is not above beta_slow 40",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, **changes)
    assert message in str(caught.value)


def test_what_experts_cannot_do_is_reported_by_the_flag(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"--quantization fp8: a checkpoint of GptOss.* one tensor for all experts"
    ):
        quantized_online(spec, "fp8")
    assert spec is quantized_online(spec, None)
    check_alignment(spec, 2)
    with pytest.raises(ConfigurationError, match=r"size 64: a rank's intermediate_size .* is not a multiple of 32"):
        check_alignment(spec_of(tmp_path, intermediate_size=320), 64)


def test_ranks_compute_what_one_computes(tmp_path: Path) -> None:
    """Each has a part of every expert, in floating point and in MXFP4; biases count once."""
    plain = save(random_model(intermediate_size=110), tmp_path / "plain")
    mxfp4 = write_checkpoint(TINY_GPT_OSS, tmp_path / "mxfp4", CPU, std=0.3)
    group_logits(2, [plain, mxfp4], tmp_path)
    for directory in (plain, mxfp4):
        expected = logits_of(load(directory))
        torch.testing.assert_close(torch.load(tmp_path / f"{directory.stem}.pt"), expected, rtol=1e-4, atol=1e-4)


def dequantized(blocks: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    """Rows of MXFP4 in float64, from its bits: sign, two of exponent (bias 1), one of mantissa; 2 ** (scale - 127)."""
    bits = np.stack([blocks.numpy() & 15, blocks.numpy() >> 4], axis=-1).reshape(*blocks.shape[:-1], 32).astype(int)
    sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
    size = np.where(exponent == 0, mantissa / 2, (1 + mantissa / 2) * 2.0 ** (exponent - 1))
    values = np.where(sign == 1, -size, size) * 2.0 ** (scales.numpy().astype(float) - 127)[..., None]
    return values.reshape(*blocks.shape[:2], -1)


def test_mxfp4_is_dequantized_as_defined(tmp_path: Path) -> None:
    """Whichever file comes first: here the exponents lie before the numbers."""
    directory = write_checkpoint(TINY_GPT_OSS, tmp_path / "tiny", CPU, std=0.3)
    tensors = load_file(next(directory.glob("*.safetensors")))
    for name, tensor in tensors.items():
        if name.endswith("_scales"):
            tensor.copy_(torch.randint(100, 150, tensor.shape, dtype=torch.uint8))
    early = {name: tensor for name, tensor in tensors.items() if name.endswith("_scales")}
    late = {name: tensor for name, tensor in tensors.items() if name not in early}
    save_file(early, directory / "a.safetensors")
    save_file(late, directory / "b.safetensors")
    places = dict.fromkeys(early, "a.safetensors") | dict.fromkeys(late, "b.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for dtype in (torch.float32, torch.bfloat16):
        decoder = load(directory, dtype=dtype)
        for index, layer in enumerate(decoder.layers):
            for name, ours in (("gate_up", layer.feed_forward.gate_up), ("down", layer.feed_forward.down)):
                prefix = f"model.layers.{index}.mlp.experts.{name}_proj"
                expected = torch.from_numpy(dequantized(tensors[f"{prefix}_blocks"], tensors[f"{prefix}_scales"]))
                bias = tensors[f"{prefix}_bias"]
                if name == "gate_up":  # rows of gate and up in turn, which are apart here
                    expected, bias = (torch.cat((x[:, ::2], x[:, 1::2]), dim=1) for x in (expected, bias))
                assert torch.equal(ours.double(), expected), "all of them are numbers of bfloat16"
                assert torch.equal(getattr(layer.feed_forward, f"{name}_bias"), bias.to(dtype))


def test_a_checkpoint_in_mxfp4_computes_as_in_transformers(tmp_path: Path) -> None:
    from transformers import GptOssForCausalLM, Mxfp4Config

    directory = write_checkpoint(TINY_GPT_OSS, tmp_path / "tiny", CPU, std=0.3)
    plain = Mxfp4Config(dequantize=True)
    model = GptOssForCausalLM.from_pretrained(directory, dtype=torch.float32, quantization_config=plain).eval()
    tokens = random_tokens(70, 8, TINY_GPT_OSS.vocab)
    (logits,) = Stepper(load(directory)).step([(Sequence(tokens), 70)])
    assert_same(logits, reference_logits(model, tokens))


@pytest.mark.parametrize("kept", [True, False])
def test_scales_that_are_not_numbers_are_refused(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, name = write_checkpoint(TINY_GPT_OSS, tmp_path, CPU), "model.layers.0.mlp.experts.down_proj_scales"
    path = next(directory.glob("*.safetensors"))
    tensors = load_file(path)
    tensors[name].view(-1)[-1] = 255
    save_file(tensors, path)
    monkeypatch.setattr(device_support, "triton_runs_on", lambda _: kept)
    with pytest.raises(ModelLoadError, match=f"{name}' has scales that are not numbers"):
        load(directory)


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_where_kernels_multiply_mxfp4_experts_stay_as_they_are_stored(
    rank: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codes in memory are the numbers that other devices load, also a rank's part; the plan counts their bytes."""
    files = ModelFiles("tiny", directory=write_checkpoint(TINY_GPT_OSS, tmp_path / "tiny", CPU, std=0.3))
    shard = Shard() if rank is None else Shard(rank, 2)
    spec = read_spec(files)

    def loaded(*, kept: bool) -> Decoder:
        monkeypatch.setattr(device_support, "triton_runs_on", lambda _: kept)
        return load_model(files, spec, CPU, torch.float32, lambda *_: None, Collectives(shard))

    def planned(*, kept: bool) -> int:
        monkeypatch.setattr(device_support, "triton_runs_on", lambda _: kept)
        return footprint.weight_bytes(make_blueprint(spec, torch.bfloat16, shard))

    for quantized, plain in zip(loaded(kept=True).mixtures(), loaded(kept=False).mixtures(), strict=True):
        for codes, scales, numbers in (
            (quantized.gate_up, quantized.gate_up_scales, plain.gate_up),
            (quantized.down, quantized.down_scales, plain.down),
        ):
            assert (codes.dtype, scales.dtype) == (torch.uint8, torch.uint8)
            table = torch.tensor(E2M1)
            pairs = torch.stack((table[(codes & 15).int()], table[(codes >> 4).int()]), dim=-1).flatten(-2)
            powers = torch.tensor(E8M0)[scales.int()].repeat_interleave(32, dim=-1)
            assert torch.equal(pairs * powers, numbers)
    weights = sum(mixture.gate_up.numel() + mixture.down.numel() for mixture in loaded(kept=False).mixtures())
    assert planned(kept=False) - planned(kept=True) == 2 * weights - weights // 2 - weights // 32


def test_a_tensor_of_another_type_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(TINY_GPT_OSS, tmp_path / "tiny", CPU)
    [file] = directory.glob("*.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_blocks"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name].to(torch.int8)}, file)
    with pytest.raises(ModelLoadError, match=rf"tensor '{name}' is I8, not U8"):
        load(directory)
    save_file({**tensors, name: tensors[name][:, :, :1].contiguous()}, file)
    with pytest.raises(ModelLoadError, match=rf"{name} is \[4, 64, 1, 16\], expected \[4, 64, 3, 16\]"):
        load(directory)


class Grouped(ExpertsInTurn):
    """PyTorch's grouped product, which a GPU may take."""

    def __init__(self) -> None:
        super().__init__(torch_product)

    def __call__(
        self,
        x: torch.Tensor,
        experts: Experts,
        chosen: torch.Tensor,
        weights: torch.Tensor,
        adapters: ExpertAdapters | None = None,
    ) -> torch.Tensor:
        assert adapters is None
        return torch_mixture_of_experts(x, experts, chosen, weights)


def grouped() -> Compute:
    return Compute(experts=Grouped())


@pytest.mark.parametrize("compute", [Compute, grouped, None], ids=["one by one", "grouped", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("active", [1, 4])
def test_step_bytes_bounds_a_step(
    active: int, dtype: torch.dtype, compute: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compute:
        monkeypatch.setattr(decoder_module, "choose_compute", lambda *_: compute())
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    spec = spec_of(
        tmp_path, **shape, vocab_size=300, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=active
    )
    decoder = Decoder(spec, dtype=dtype, device=CPU)
    for name, parameter in decoder.named_parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.02)
        if name.endswith("router.bias"):  # all tokens to the same experts
            parameter.copy_(torch.arange(len(parameter)) * 9.0)
    stepper = Stepper(decoder, num_blocks=64)
    with peak_memory() as peak:
        stepper.step([(Sequence([7] * count), count) for count in (300, 100)], sample=[0, 399])
    task = attention_task(decoder, 16, decoder.dtype)
    scratch = max(stepper.backend.scratch_bytes(task, group, 400, 2, 300) for group in decoder.kv_groups)
    bound = footprint.step_bytes(decoder, 400, 2, scratch + footprint.module_scratch_bytes(decoder))
    bound += decoder.compute.widens * footprint.widening_bytes(decoder, 400)
    assert peak.bytes <= bound
    if compute is grouped:
        assert peak.bytes > bound / 4


def test_every_parameter_is_counted_and_filled(pair: tuple[Any, Decoder], tmp_path: Path) -> None:
    model, decoder = pair
    counted = footprint.weight_bytes(make_blueprint(decoder.spec, torch.float32, Shard())) // 4
    assert counted == sum(p.numel() for p in decoder.parameters()) == sum(p.numel() for p in model.parameters())
    files = ModelFiles("test", directory=save(model, tmp_path))
    with poisoned():
        again = load_model(files, read_spec(files), CPU, torch.float32, lambda *_: None)
    assert all(torch.equal(ours, first) for ours, first in zip(again.parameters(), decoder.parameters(), strict=True))
