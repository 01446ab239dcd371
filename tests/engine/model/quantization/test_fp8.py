"""Weights and KV cache in e4m3: what checkpoints of each format stand for, what `--quantization fp8` and
`--kv-cache-dtype fp8` change, and that nothing else changes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from c_kernels import needs_kernels
from checkpoints import reference_model, save
from fp8_checkpoints import FORMATS, SIZES, save_fp8
from gguf_writer import write_gguf
from loaded import CPU, linears, load
from peak_memory import peak_memory
from rank_logits import group_logits, logits_of
from safetensors.torch import load_file, save_file
from stepper import Sequence, Stepper

from octavo_engine import LLM, SamplingParams
from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import make_blueprint, resolve_config, resolve_for_estimate
from octavo_engine.engine.startup.sizing import memory_need
from octavo_engine.errors import ModelLoadError
from octavo_engine.llm import Completion
from octavo_engine.model import footprint
from octavo_engine.model.checkpoint.names import LLAMA_NAMES
from octavo_engine.model.checkpoint.tensors import Span, unsharded
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.layers.embeddings.rope import head_order
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.device_support import DeviceSupport
from octavo_engine.model.layers.operations.fused import FusedLayers
from octavo_engine.model.layers.operations.products import torch_product
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualSum
from octavo_engine.model.loader import load_model
from octavo_engine.model.quantization.e4m3 import dequantize, quantize_rows
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Projection
from octavo_engine.model.quantization.loading import quantize_into
from octavo_engine.model.quantization.pieces import PIECE_BYTES
from octavo_engine.model.quantization.select import ONLINE
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import RopeSpec
from octavo_engine.model.tensor_parallel.collectives import ALONE, Collectives
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.kv_cache import allocate_cache

pytestmark = pytest.mark.usefixtures("several_threads")

FP8 = torch.float8_e4m3fn
PARIS = [{"role": "user", "content": "Name the capital of France."}]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_gives_the_logits_of_the_numbers_it_stands_for(name, tmp_path):
    model = save_fp8(tmp_path / "fp8", name)
    decoder = load(tmp_path / "fp8")
    exact = load(save(model, tmp_path / "exact"))
    assert {linear.weight.dtype for linear in linears(decoder)} == {FP8}
    torch.testing.assert_close(logits_of(decoder), logits_of(exact), rtol=1e-5, atol=1e-5)
    half = logits_of(load(tmp_path / "fp8", dtype=torch.bfloat16))
    assert torch.cosine_similarity(half, logits_of(exact)).min() > 0.99
    spec = decoder.spec
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load(tmp_path / "fp8", dtype=dtype)
        assert footprint.weight_bytes(make_blueprint(spec, dtype, Shard())) == sum(
            parameter.nbytes for parameter in loaded.parameters()
        )


def test_projections_of_one_input_take_the_largest_input_scale(tmp_path):
    save_fp8(tmp_path, "modelopt")
    stored = load_file(tmp_path / "model.safetensors")
    for index, linear in enumerate(linears(load(tmp_path))[:4]):
        names = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))[index]
        scales = [v for k, v in stored.items() if re.search(rf"layers\.0.*\.({'|'.join(names)})_proj\.input_scale", k)]
        assert len(scales) == len(names)
        assert linear.input_scale is not None
        assert linear.input_scale.item() == max(scales)


PARTIAL = {"head_dim": 24, "hidden_size": 144, "intermediate_size": 200, "num_attention_heads": 6}
PARTIAL |= {"num_key_value_heads": 3}
"""Sizes of which none is a multiple of a block's rows or columns."""


def test_ranks_compute_what_one_computes(tmp_path):
    names = ["deepseek", "compressed_channel", "compressed_tensor", "small_blocks"]
    for name in names:
        save_fp8(tmp_path / name, name, **(PARTIAL if name == "small_blocks" else {}))
    group_logits(2, [tmp_path / name for name in names], tmp_path)
    for name in names:
        expected = logits_of(load(tmp_path / name))
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.pt"), expected, rtol=1e-4, atol=1e-4)


INTERLEAVED = {"pad_token_id": 0, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 88, "norm_topk_prob": True}


@pytest.mark.parametrize("name", ["deepseek", "compressed_block", "small_blocks"])
@pytest.mark.parametrize(
    ("family", "changes"),
    [("Llama", {}), ("Phi3", {"pad_token_id": 0, "head_dim": ...}), ("Cohere", INTERLEAVED), ("Qwen3Moe", EXPERTS)],
    ids=["separate", "stored together", "rows in another order", "experts"],
)
def test_blocks_may_be_partial_and_shared_by_projections(family, changes, name, tmp_path):
    save_fp8(tmp_path, name, family=family, **{**PARTIAL, **changes})
    config = EngineConfig(model="test", device="cpu", tensor_parallel_size=2)
    resolve_config(config, ModelFiles("test", directory=tmp_path), Shard(0, 2))  # nothing is refused
    torch.testing.assert_close(logits_of(load(tmp_path)), logits_of(load(tmp_path / "exact")), rtol=1e-5, atol=1e-5)


K = "model.layers.1.self_attn.k_proj"
FAULTS = {
    "left out": ({K + ".weight": torch.zeros(128, 128)}, "is F32, not F8_E4M3"),
    "another type": ({K + ".weight": torch.zeros(128, 128).to(torch.float8_e5m2)}, "is F8_E5M2, not F8_E4M3"),
    "too many scales": ({K + ".weight_scale": torch.ones(3)}, "weight_scale is [3], expected [128]"),
    "whole scales": ({K + ".weight_scale": torch.ones(128, dtype=torch.int32)}, "is I32, not floating point"),
    "a negative scale": ({K + ".weight_scale": torch.full((128,), -0.5)}, "128 scales that are not positive numbers"),
    "a scale of zero": ({K + ".weight_scale": torch.arange(128.0)}, "k_proj.weight_scale' has 1 scales that are no"),
    "a scale of nothing": ({K + ".weight_scale": torch.full((128,), torch.nan)}, "such as nan"),
    "a KV scale of nothing": ({"model.layers.1.self_attn.k_scale": torch.tensor(0.0)}, "is not a scale of a layer"),
    "a KV scale of no layer": (
        {"model.layers.9.self_attn.v_scale": torch.tensor(1.0)},
        "1 tensors that LlamaForCausalLM",
    ),
}


@pytest.mark.parametrize(("changes", "message"), FAULTS.values(), ids=FAULTS)
def test_wrong_tensors_are_named(changes, message, tmp_path):
    save_fp8(tmp_path, "compressed_channel")
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), **changes}, path)
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert message in str(caught.value)
    assert next(iter(changes)) in str(caught.value)


def test_e4m3_without_scales_is_refused(tmp_path):
    save_fp8(tmp_path, "tensor")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="weight_scale"):
        load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_quantized_while_loading_is_off_by_no_more_than_e4m3_is(dtype, tmp_path):
    """A number of 3 bits behind the first is off by 1/16 at most, below 2^-6 of the range by half a step of 2^-9."""
    model = reference_model(**SIZES, mlp_bias=True)
    directory = save(model, tmp_path, dtype=dtype)
    exact, decoder = load(directory, dtype=dtype), load(directory, "fp8", dtype)
    assert torch.equal(decoder.input.tokens.weight, exact.input.tokens.weight)
    assert torch.equal(decoder.head.weight, exact.head.weight)
    for ours, theirs in zip(linears(decoder), linears(exact), strict=True):
        assert ours.weight.dtype == FP8
        assert ours.scale is not None
        found, wanted = ours.weight.double() * ours.scale.double(), theirs.weight.double()
        torch.testing.assert_close(found.abs().amax(1), wanted.abs().amax(1), rtol=1e-6, atol=0)
        bound = torch.maximum(wanted.abs() / 16, ours.scale.double() * 2.0**-10) * (1 + 1e-5)
        assert bool(((found - wanted).abs() <= bound).all())
        assert ours.bias is None or torch.equal(ours.bias, theirs.bias)
    similar = torch.cosine_similarity(logits_of(decoder).float(), logits_of(exact).float())
    assert 0.95 < similar.mean() < 1  # random weights make sharp attention of numbers that are nearly equal


def test_a_gguf_file_is_quantized_like_its_numbers(tmp_path):
    """Its rows of q and k are in another order."""
    model = reference_model(attention_bias=True)
    ours = load(write_gguf(model, tmp_path / "model.gguf"), "fp8")
    theirs = load(save(model, tmp_path / "model"), "fp8")
    torch.testing.assert_close(logits_of(ours), logits_of(theirs), rtol=1e-5, atol=1e-5)


def test_what_is_beyond_the_range_is_its_largest_and_zeros_stay_zeros():
    weight = torch.tensor([[0.0, 0, 0], [1e-38, -1e-38, 0], [3e38, 1, -3e38], [1e-3, 448, 0.5]])
    values, scale = quantize_rows(weight)
    assert values.float().abs().amax(1).tolist()[2:] == [448, 448]
    assert bool(scale.isfinite().all())
    back = dequantize(values, scale)
    torch.testing.assert_close(back[2], torch.tensor([3e38, 0, -3e38]))
    torch.testing.assert_close(back[3], weight[3], rtol=2**-4, atol=2**-10)
    assert back[0].tolist() == [0, 0, 0]


def test_loading_holds_little_more_than_the_quantized_model(tmp_path):
    """Nowhere a second copy, be it of one layer: of 16 bits a weight there are never more than a tensor's."""
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3, "vocab_size": 32}
    directory = save(reference_model(**wide), tmp_path, dtype=torch.bfloat16)
    files = ModelFiles("test", directory=directory)
    spec = quantized_online(read_spec(files), "fp8")
    wanted = footprint.weight_bytes(make_blueprint(spec, torch.bfloat16, Shard()))
    with peak_memory() as peak:
        load_model(files, spec, CPU, torch.bfloat16, lambda *_: None)
    largest = 4096 * 1024 * 2
    # The profiler counts the blueprint, which has no memory, and parameters that were never written to.
    assert peak.bytes - 2 * wanted < wanted + 1.2 * largest + 13 * (1 << 20)
    assert wanted < 0.53 * footprint.weight_bytes(make_blueprint(read_spec(files), torch.bfloat16, Shard()))


def test_a_rank_quantizes_its_part(tmp_path):
    directory = save(reference_model(**SIZES), tmp_path)
    whole, part = load(directory, "fp8"), load(directory, "fp8", ranks=Collectives(Shard(1, 2)))
    for index, rows in enumerate(((128, 128, 128), (128,), (128, 128), (128,))):
        ours, theirs = linears(part)[index], linears(whole)[index]
        assert ours.parts == rows
        assert ours.scale is not None and theirs.scale is not None
        if index == 2:  # the second half of gate, then of up
            expected = theirs.weight.view(2, 2, 128, 128)[:, 1].reshape(256, 128)
            assert torch.equal(ours.weight.view(torch.uint8), expected.view(torch.uint8))
            assert torch.equal(ours.scale, theirs.scale.view(2, 2, 128)[:, 1].reshape(256, 1))


@pytest.mark.parametrize("name", ["deepseek", "compressed_channel", "compressed_tensor"])
def test_uneven_ranks_have_the_scales_of_their_parts(name, tmp_path):
    """Two ranks share three KV heads and three blocks of the intermediate size: together they have the full model."""
    sizes = {"hidden_size": 384, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 384}
    save_fp8(tmp_path, name, **sizes)
    shards = [Shard(rank, 2) for rank in range(2)]
    config = EngineConfig(model="test", device="cpu", tensor_parallel_size=2)
    resolve_config(config, ModelFiles("test", directory=tmp_path), shards[0])  # nothing is refused
    whole, parts = load(tmp_path), [load(tmp_path, ranks=Collectives(shard)) for shard in shards]
    assert [linears(part)[0].parts for part in parts] == [(256,) * 3, (128,) * 3]
    for index, linear in enumerate(linears(whole)):
        found = [linears(part)[index] for part in parts]
        if len(linear.parts) == 1:  # cut by columns
            together = torch.cat([stands_for(part) for part in found], dim=1)
        else:
            pieces = zip(*(stands_for(part).split(part.parts) for part in found), strict=True)
            together = torch.cat([torch.cat(piece) for piece in pieces])
        assert torch.equal(together, stands_for(linear))


def stands_for(linear: Linear) -> torch.Tensor:
    return linear.method.dequantized(linear.weights, torch.float32)


def test_dequantized_weights_are_multiplied_as_all_others_are():
    """A CPU that emulates products of bfloat16 thus widens these too."""
    seen: list[torch.Tensor] = []
    compute = Compute(product=lambda x, weight, *more: (seen.append(weight), torch_product(x, weight, *more))[1])
    dtype = torch.bfloat16
    options = LayerOptions(ALONE, compute, dtype, CPU, LLAMA_NAMES)
    linear = Linear(unsharded(48), (unsharded(32),), bias=True, options=options, method=ONLINE["fp8"].default)
    weight, bias = torch.randn(32, 48), torch.randn(32).to(dtype)
    quantize_into(quantize_rows, (linear.scale,), linear.weight, slice(0, 32), weight)
    linear.bias.copy_(bias)
    x, addend = torch.randn(9, 48).to(dtype), torch.randn(9, 32).to(dtype)
    exact = x.double() @ stands_for(linear).double().T + bias.double() + addend.double()
    found = linear.add_to(addend.clone(), x)
    torch.testing.assert_close(found.double(), exact, rtol=2**-6, atol=0.1)
    assert [w.dtype for w in seen] == [dtype]
    assert torch.equal(seen[0], stands_for(linear).to(dtype))


@pytest.mark.parametrize("columns", [64, 56])
def test_ranks_of_all_sizes_leave_the_residual_to_the_next_norm(columns):
    """56 columns are not multiplied in 8 bits, but another rank's 64 may be: none adds the residual to its product."""
    dtype = torch.bfloat16
    support = DeviceSupport(fp8_products=True)
    options = LayerOptions(ALONE, Compute(product=torch_product), dtype, CPU, LLAMA_NAMES, support)
    linear = Linear(Span(0, columns, 120), (unsharded(32),), bias=False, options=options, method=ONLINE["fp8"].default)
    assert linear.weights.in_8_bits == (columns == 64)
    linear.weights.in_8_bits = False  # this CPU cannot
    quantize_into(quantize_rows, (linear.scale,), linear.weight, slice(0, 32), torch.randn(32, columns))
    x, residual = torch.randn(9, columns).to(dtype), torch.randn(9, 32).to(dtype)
    stream = linear.add_to(residual, x)
    assert isinstance(stream, ResidualSum)
    assert torch.equal(stream.residual, residual)
    assert torch.equal(stream.product, linear(x))


@pytest.mark.parametrize(
    ("dtype", "changes", "in_8_bits"),
    [("bfloat16", {}, True), ("float32", {}, False), ("bfloat16", {"intermediate_size": 250}, False)],
    ids=["half precision", "float32", "odd sizes"],
)
def test_what_is_dequantized_on_a_gpu_that_multiplies_in_8_bits_is_planned(dtype, changes, in_8_bits, tmp_path):
    files = ModelFiles("test", directory=save(reference_model(**{**SIZES, **changes}), tmp_path))
    config = EngineConfig(model="test", dtype=dtype, quantization="fp8", enforce_eager=True, max_num_seqs=1)
    target = resolve_for_estimate(config, files)
    assert (footprint.module_scratch_bytes(target.blueprint) == 0) is in_8_bits
    dequantizing = make_blueprint(target.spec, target.dtype, Shard())
    for blueprint in (target.blueprint, dequantizing):
        weights = (linear.weights for linear in blueprint.linears())
        sizes = [PIECE_BYTES + target.dtype.itemsize, *(w.weight.numel() for w in weights if not w.in_8_bits)]
        assert footprint.module_scratch_bytes(blueprint) == (sizes[0] * max(sizes[1:]) if sizes[1:] else 0)
    scratch = [footprint.module_scratch_bytes(blueprint) for blueprint in (target.blueprint, dequantizing)]
    steps = [memory_need(other, config).step for other in (target, replace(target, blueprint=dequantizing))]
    assert steps[1] - steps[0] == scratch[1] - scratch[0]
    assert scratch[1] > 0


@pytest.mark.parametrize("scheme", [ONLINE["fp8"].default, FP8Scheme("block"), ONLINE["int8"].default])
def test_a_product_dequantizes_a_large_weight_in_pieces(scheme: LinearMethod) -> None:
    """Of 4 M numbers a quarter at a time is in float32."""
    options = LayerOptions(ALONE, Compute(product=torch_product), torch.bfloat16, CPU, LLAMA_NAMES)
    linear = Linear(unsharded(1024), (unsharded(4096),), bias=False, options=options, method=scheme)
    linear.weight.copy_(torch.randint(-100, 100, (4096, 1024)))
    linear.scale.copy_(torch.rand(linear.scale.shape))
    x = torch.randn(1, 1024, dtype=torch.bfloat16)
    with peak_memory() as peak:
        product = linear(x)
    numbers = linear.weight.float().unflatten(1, (linear.scale.shape[1], -1)) * linear.scale.unsqueeze(-1)
    assert torch.equal(product, x @ numbers.flatten(1).bfloat16().T)
    assert peak.bytes - product.nbytes <= linear.scratch_bytes + 4096
    assert linear.scratch_bytes < linear.weight.numel() * (torch.bfloat16.itemsize + torch.float32.itemsize)


@needs_kernels
def test_c_kernels_that_know_no_e4m3_leave_such_layers_alone(tmp_path):
    directory = save(reference_model(**SIZES), tmp_path)
    for quantization, fused in ((None, True), ("fp8", False)):
        decoder = load(directory, quantization, torch.bfloat16)
        assert isinstance(decoder.compute.runner, FusedLayers) is fused


@pytest.mark.parametrize("settings", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}], ids=["weights", "KV"])
def test_smollm2_knows_the_capital_of_france(settings):
    llm = LLM("smollm2", device="cpu", dtype="float32", num_kv_blocks=16, max_model_len=128, **settings)
    [answer] = llm.chat([PARIS], GREEDY)
    llm.close()
    assert "Paris" in answer.text


TIGHT: dict[str, Any] = {"num_kv_blocks": 12, "max_model_len": 160, "max_num_seqs": 8, "max_num_batched_tokens": 48}


TOP_TWO = SamplingParams(max_tokens=40, temperature=0.0, logprobs=2)


def with_fp8_cache(model: Path, swap: int) -> LLM:
    return LLM(str(model), device="cpu", dtype="float32", kv_cache_dtype="fp8", swap_space=swap, **TIGHT)


@pytest.fixture(scope="module")
def alone_in_fp8(tiny_model: Path) -> list[Completion]:
    """The answers alone: nothing is swapped for them."""
    common = [(5 * i) % 64 for i in range(40)]
    prompts = [[*common[: 16 * (i % 3)], *((7 * i + j * j) % 64 for j in range(9 + i))] for i in range(16)]
    llm = with_fp8_cache(tiny_model, 0)
    answers = [llm.generate([prompt], TOP_TWO)[0] for prompt in prompts]
    llm.close()
    return answers


@pytest.mark.parametrize("swap", [0, 1 << 20], ids=["recomputed", "swapped"])
def test_an_fp8_cache_gives_the_same_answers_in_a_batch_as_alone(swap, tiny_model, alone_in_fp8):
    """Prefix hits, preemption and swapping move or compute the same bytes. Ties, decided by rounding, are left out."""
    llm = with_fp8_cache(tiny_model, swap)
    batched = llm.generate([answer.prompt_token_ids for answer in alone_in_fp8], TOP_TWO)
    report = llm.report()
    llm.close()
    compared = 0
    for single, one in zip(alone_in_fp8, batched, strict=True):
        margins = [entry.top[0][1] - entry.top[1][1] for entry in single.logprobs]
        sure = next((place for place, margin in enumerate(margins) if margin < 0.02), len(margins))
        assert one.token_ids[:sure] == single.token_ids[:sure]
        compared += sure
    assert compared > 16 * 40 / 2
    assert report.preemptions > 0
    assert report.prefix_hit_tokens > 0
    assert (report.swapped_in_blocks > 0) == (swap > 0)


def test_an_fp8_cache_takes_half_and_changes_little(tiny_model):
    config = EngineConfig(model=str(tiny_model), device="cpu", dtype="bfloat16", kv_cache_dtype="fp8_e4m3")
    target = resolve_config(config, ModelFiles("test", directory=tiny_model), Shard())
    assert (target.kv_dtype, target.backend.name) == (FP8, "torch")
    half, full = (footprint.kv_bytes_per_token(target.kv_groups, dtype) for dtype in (FP8, torch.bfloat16))
    assert full == 2 * half
    exact, ours = (logits_of_cached(tiny_model, dtype) for dtype in (torch.float32, FP8))
    assert not torch.equal(exact, ours)
    assert torch.cosine_similarity(exact, ours).mean() > 0.99


def logits_of_cached(path: Path, dtype: torch.dtype, scales: tuple[float, float] = (1.0, 1.0)) -> torch.Tensor:
    decoder = load(path)
    stepper, tokens = Stepper(decoder), [(3 * i) % 64 for i in range(30)]
    groups = decoder.spec.kv_groups
    cache = allocate_cache(
        stepper.backend, groups, num_blocks=[128], swap_blocks=[0], block_size=16, dtype=dtype, device=CPU
    )
    for tensor in cache.tensors(0):
        tensor.fill_(torch.nan)
    stepper.caches = cache.scaled(dict.fromkeys(cache.layers, scales)).layers
    sequence = Sequence(tokens)
    return torch.cat([stepper.step([(sequence, n)])[0] for n in (27, 1, 1, 1)])


def test_a_checkpoints_kv_scales_reach_the_cache(tmp_path):
    save_fp8(tmp_path, "modelopt")
    path = tmp_path / "model.safetensors"
    scales = {
        "model.layers.0.self_attn.k_proj.k_scale": torch.tensor(0.5),
        "model.layers.1.self_attn.v_scale": torch.tensor([4.0]),
    }
    save_file({**load_file(path), **scales}, path)
    decoder = load(tmp_path)
    assert decoder.kv_scales() == {0: (0.5, 1.0), 1: (1.0, 4.0)}
    (group,) = decoder.spec.kv_groups
    assert group == KVGroupSpec("full", (0, 1), 1, 128)
    cache = allocate_cache(
        TorchAttention(), (group,), num_blocks=[2], swap_blocks=[0], block_size=16, dtype=FP8, device=CPU
    ).scaled(decoder.kv_scales())
    assert [(layer.key_scale, layer.value_scale) for layer in cache.layers.values()] == [(0.5, 1.0), (1.0, 4.0)]


def test_scales_keep_what_would_be_beyond_the_range(tmp_path):
    """Keys of thousands are cut off at 448 unless the cache's scale makes room for them."""
    model = reference_model(num_hidden_layers=1)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(500)
        model.model.layers[0].self_attn.q_proj.weight.div_(500)
    directory = save(model, tmp_path)
    exact, cut_off, scaled = (
        logits_of_cached(directory, dtype, (worth, 1.0))
        for dtype, worth in ((torch.float32, 1.0), (FP8, 1.0), (FP8, 16.0))
    )
    near, far = (torch.cosine_similarity(exact, other).min() for other in (scaled, cut_off))
    assert near > 0.99 > far


@pytest.mark.parametrize(("head_dim", "in_8_bits", "fits"), [(64, True, True), (256, True, False), (256, False, True)])
def test_rows_that_leave_their_block_of_scales_are_not_multiplied_in_8_bits(head_dim, in_8_bits, fits):
    method, size = FP8Scheme("block", scale_name="weight_scale_inv"), unsharded(256)
    weights = method.create(LinearShape((256,), size), torch.bfloat16, torch.device("meta"), fp8_products=in_8_bits)
    order = head_order(RopeSpec(10000.0, interleaved=True), head_dim)
    orders = (torch.arange(0, 256, head_dim)[:, None] + order).view(-1)
    tensors = method.tensors(weights, Projection("q_proj", slice(0, 256), size, size, orders))
    if fits:
        assert [tensor.name for tensor in tensors] == ["q_proj.weight", "q_proj.weight_scale_inv"]
        return
    with pytest.raises(ModelLoadError, match=r"q_proj.weight: a layer needs its rows in another order"):
        list(tensors)
