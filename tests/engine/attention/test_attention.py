"""The torch backend against attention written out token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paging import BATCHES, Batch, make_batch, plain_attention, poisoned_cache, projection, run, unrotated
from peak_memory import peak_memory

from octavo_engine.attention import torch_reference
from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache
from octavo_engine.attention.context import write_heads
from octavo_engine.attention.cpu import CPUAttention, computes
from octavo_engine.attention.qk_norm import QKNorm, WholeProjection, normalise
from octavo_engine.attention.rope import Rope, rotate, split_heads
from octavo_engine.attention.select import select_backend
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.norm_weights import NormWeights
from tests.kernels import paged_attention_checks as kernel_checks

FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (8, 2, 32), (8, 1, 80)])
@pytest.mark.parametrize("window", [None, 1, 10, 16, 40])
def test_equals_plain_attention(lens, heads, kv_heads, head_dim, window):
    batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
    torch.testing.assert_close(run(TorchAttention(), batch).double(), plain_attention(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_small_tiles_and_buckets_change_nothing(monkeypatch, block_size, window):
    monkeypatch.setattr(torch_reference, "_QUERY_TILE", 8)
    monkeypatch.setattr(torch_reference, "_BUCKET_TOKENS", 64)
    lens = [(1, 40), (40, 40), (20, 90), (1, 41), (1, 70), (1, 3), (9, 9)]
    batch = make_batch(lens, heads=4, kv_heads=2, head_dim=16, block_size=block_size, window=window)
    torch.testing.assert_close(run(TorchAttention(), batch).double(), plain_attention(batch), rtol=1e-5, atol=1e-5)


def test_bfloat16():
    batch = make_batch(BATCHES["mixed"], heads=8, kv_heads=2, head_dim=32, dtype=torch.bfloat16)
    output = run(TorchAttention(), batch)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), plain_attention(batch), rtol=2e-2, atol=2e-2)


def test_padding_is_neither_written_nor_attended():
    """A token with slot -1 writes nothing; a sequence without context gives zeros; no other token notices."""
    batch = make_batch([(1, 20), (4, 4)], heads=4, kv_heads=2, head_dim=16)
    expected = run(TorchAttention(), batch)
    inputs = batch.inputs
    padded = type(inputs)(
        token_ids=torch.cat((inputs.token_ids, torch.zeros(2, dtype=torch.int32))),
        positions=torch.cat((inputs.positions, torch.zeros(2, dtype=torch.int64))),
        cu_query_lens=torch.tensor([0, 1, 5, 6, 7], dtype=torch.int32),
        context_lens=torch.cat((inputs.context_lens, torch.zeros(2, dtype=torch.int32))),
        block_tables=(torch.cat((inputs.block_tables[0], torch.zeros(2, inputs.block_tables[0].shape[1]).int())),),
        slot_mapping=(torch.cat((inputs.slot_mapping[0], torch.full((2,), -1))),),
        token_indices=inputs.token_indices,
        query_lens_host=(1, 4, 1, 1),
        context_lens_host=(20, 4, 0, 0),
    )
    backend = TorchAttention()
    cache = poisoned_cache(backend, batch)
    untouched = cache.key[0].clone()
    metadata = backend.prepare(padded, 0, batch.block_size, None)
    heads = torch.cat((projection(batch), torch.full((2, 8, 16), 7.0)))
    query = write_heads(backend, cache, heads, unrotated(heads), None, metadata)
    output = backend.attend(query, cache, metadata, AttentionVariant(16**-0.5))
    torch.testing.assert_close(output[:5], expected)
    assert not output[5:].any()
    torch.testing.assert_close(cache.key[0], untouched, equal_nan=True)


class _PlainKernels:
    """The C kernels that the CPU backend calls before it attends, in PyTorch: unlike these it needs no AVX-512."""

    def rotate(self, x, cos, sin):
        x.copy_(rotate(x, Rope(cos, sin)))

    def write_kv(self, key, value, key_cache, value_cache, slots):
        assert key.stride() == value.stride() and key.stride()[1:] == (key.shape[2], 1)
        for cache, new in ((key_cache, key), (value_cache, value)):
            cache.flatten(0, 1)[slots[slots >= 0]] = new[slots >= 0]

    def attention_parts(self, cu_query_lens, context_lens, tokens, window):
        """Return no parts: nothing attends."""
        return torch.empty(0, 4, dtype=torch.int32), torch.zeros(tokens + 1, dtype=torch.int64)


@pytest.mark.parametrize("norm", [False, True])
def test_the_cpu_backend_rotates_and_writes_the_heads_that_torch_does(norm):
    batch = make_batch([(3, 20), (1, 7)], heads=4, kv_heads=2, head_dim=32)
    angles = torch.randn(4, 1, 16)
    norm = QKNorm(NormWeights(torch.rand(32), 1e-6), NormWeights(torch.rand(32), 1e-6)) if norm else None
    rope = Rope(angles.cos(), angles.sin())
    found = []
    for backend in (TorchAttention(), CPUAttention(_PlainKernels())):
        cache = poisoned_cache(TorchAttention(), batch)
        metadata = backend.prepare(batch.inputs, 0, 16, None)
        query = write_heads(backend, cache, projection(batch), rope, norm, metadata)
        slots = batch.inputs.slot_mapping[0]
        found.append((query, cache.key.flatten(0, 1)[slots], cache.value.flatten(0, 1)[slots]))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    query, key, value = found[0]
    if not norm:  # rotation keeps lengths
        torch.testing.assert_close(query.norm(dim=-1), batch.query.norm(dim=-1))
        torch.testing.assert_close(key.norm(dim=-1), batch.step_key.norm(dim=-1))
    assert torch.equal(value, batch.step_value)


def test_a_sequence_does_not_depend_on_its_batch():
    """Alone or in a batch: the same numbers but for rounding."""
    lens = [(1, 37), (12, 30), (1, 200), (1, 1), (1, 38), (64, 64)]
    batch = make_batch(lens, heads=8, kv_heads=2, head_dim=32)
    together = run(TorchAttention(), batch)
    row = 0
    for s, (query_len, context) in enumerate(lens):
        alone = make_batch([(query_len, context)], heads=8, kv_heads=2, head_dim=32, seed=99)
        rows = slice(row, row + query_len)
        alone = type(alone)(
            inputs=alone.inputs,
            group=alone.group,
            block_size=16,
            query=batch.query[rows],
            keys=[batch.keys[s]],
            values=[batch.values[s]],
            step_key=batch.step_key[rows],
            step_value=batch.step_value[rows],
        )
        torch.testing.assert_close(run(TorchAttention(), alone), together[rows], rtol=1e-5, atol=1e-6)
        row += query_len


@pytest.mark.parametrize("lens", kernel_checks.LENS.values(), ids=kernel_checks.LENS)
@pytest.mark.parametrize(
    "wanted",
    [{"softcap": 5.0}, {"sinks": True}, {"softcap": 5.0, "sinks": True, "window": 33}, {"cache_dtype": FP8}],
    ids=["softcap", "sinks", "all", "fp8"],
)
def test_softcap_sinks_and_fp8(lens, wanted):
    """Against the kernels' reference."""
    step = kernel_checks.make_step(
        kernel_checks.Case(lens, kv_heads=2, head_dim=32, dtype=torch.float32, **wanted), torch.device("cpu")
    )
    cached = [x.float().nan_to_num().to(x.dtype) for x in (step.cache.key, step.cache.value)]
    cache = LayerCache(*cached, step.cache.key_scale, step.cache.value_scale)
    backend = TorchAttention()
    metadata = backend.prepare(step.inputs, 0, 16, step.case.window)
    kernel_checks.assert_right(backend.attend(step.query, cache, metadata, step.variant), step.expected())


def test_fp8_is_written_as_the_nearest_number_there_is():
    """Saturated at 448; a token without a slot is not written; a block's first token clears what was in it."""
    batch = make_batch([(40, 40)], heads=2, kv_heads=2, head_dim=16)
    backend = TorchAttention()
    group = batch.group
    cache = replace(backend.allocate(group, 8, 16, FP8, torch.device("cpu"))[0], key_scale=0.01, value_scale=2.0)
    cache.key.fill_(float("nan"))
    batch.inputs.slot_mapping[0][5] = -1
    heads = torch.cat((batch.query, batch.step_key * 3, batch.step_value), dim=1)
    write_heads(backend, cache, heads, unrotated(heads), None, backend.prepare(batch.inputs, 0, 16, None))
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8).double()
    numbers = numbers[~numbers.isnan()]
    slots = batch.inputs.slot_mapping[0]
    for blocks, x, scale in ((cache.key, batch.step_key * 3, 0.01), (cache.value, batch.step_value, 2.0)):
        wanted = x[slots >= 0].double() / scale
        nearest = (wanted.unsqueeze(-1) - numbers).abs().amin(-1)
        written = blocks.flatten(0, 1)[slots[slots >= 0]].double()
        torch.testing.assert_close((wanted - written).abs(), nearest, rtol=1e-4, atol=1e-6)
    owned = cache.key[batch.inputs.block_tables[0][0, :3].long()]
    assert owned.float().isfinite().all()
    assert owned.float().abs().max() == 448


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("sinks", [None, torch.zeros(8)], ids=["", "sinks"])
def test_scratch_bytes_bounds_what_a_step_allocates(sinks, softcap, dtype):
    variant = AttentionVariant(1.0, softcap, sinks)
    heads, kv_heads, head_dim, max_tokens, max_seqs, max_context = 8, 2, 32, 600, 40, 3000
    for lens in ([(600, 3000)], [(1, 2990 - s) for s in range(40)], [(1, 50)] * 39 + [(500, 501)]):
        batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        backend = TorchAttention()
        cache = poisoned_cache(backend, batch)
        with peak_memory() as preparing:
            metadata = backend.prepare(batch.inputs, 0, 16, None)
        query = write_heads(backend, cache, projection(batch), unrotated(batch.query), None, metadata)
        with peak_memory() as attending:
            backend.attend(query, cache, metadata, variant)
        used = preparing.bytes + attending.bytes
        task = AttentionTask((batch.group,), 16, dtype, dtype, heads, plain=variant.plain)
        bound = backend.scratch_bytes(task, batch.group, max_tokens, max_seqs, max_context)
        result = batch.query.nbytes
        assert used <= bound + result, f"{lens[:2]} used {used}, bound {bound}"


@pytest.mark.parametrize("latent", [None, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scratch_bytes_bounds_what_decodes_over_an_fp8_cache_allocate(dtype, latent):
    """A full bucket: its last numbers come as bytes and in float32 while the others are there."""
    count, context = 40, 1638
    lens = [(1, context)] * count
    batch = make_batch(lens, heads=8, kv_heads=2 if latent is None else 1, head_dim=64, dtype=dtype)
    backend, group = TorchAttention(), replace(batch.group, latent=latent)
    blocks = int(batch.inputs.block_tables[0].max()) + 1
    cache = backend.allocate(group, blocks, 16, FP8, torch.device("cpu"))[0]
    with peak_memory() as peak:
        backend.attend(batch.query, cache, backend.prepare(batch.inputs, 0, 16, None), AttentionVariant(1.0))
    task = AttentionTask((group,), 16, dtype, FP8, 8)
    bound = backend.scratch_bytes(task, group, count, count, context) + batch.query.nbytes
    assert bound / 2 < peak.bytes <= bound


def test_auto_takes_torch_on_cpus_and_triton_on_gpus_only():
    assert select_backend("auto", torch.device("cpu")).name == "torch"
    assert select_backend("torch", torch.device("cuda")).name == "torch"
    assert select_backend("auto", torch.device("cuda")).name == "triton"
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        select_backend("triton", torch.device("cpu"))
    with pytest.raises(ConfigurationError, match="flash"):
        select_backend("flash", torch.device("cpu"))


def test_the_cpu_kernels_are_not_taken_for_what_they_cannot_compute():
    group = KVGroupSpec("full", (0,), 2, 64)
    assert computes(AttentionTask((group,), 16, torch.float32, torch.float32, 4))
    assert not computes(AttentionTask((group,), 16, torch.float32, torch.float32, 4, plain=False))
    assert not computes(AttentionTask((group,), 16, torch.float32, FP8, 4))


def test_bytes_per_token_counts_keys_and_values_of_all_layers():
    group = KVGroupSpec("full", (0, 1, 2), 3, 64)
    assert group.bytes_per_token(torch.bfloat16) == 2 * 3 * 3 * 64 * 2


def heads_by_hand(batch: Batch, rope: Rope | None, norm: QKNorm | None) -> list[torch.Tensor]:
    """Query and key as a layer asks for them, element by element in float64."""
    found = []
    for given, weights in ((batch.query, norm and norm.query), (batch.step_key, norm and norm.key)):
        x = given.double()
        if norm is not None and norm.projection is not None:
            x /= (x.square().mean((1, 2), keepdim=True) + weights.eps).sqrt() / weights.weight
        elif norm is not None:
            x -= x.mean(-1, keepdim=True)
            x /= (x.square().mean(-1, keepdim=True) + weights.eps).sqrt() / weights.weight
        if rope is not None:
            half = rope.rotary_dim // 2
            pairs = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.complex(rope.cos, rope.sin)
            x[..., :half], x[..., half : 2 * half] = pairs.real, pairs.imag
        found.append(x)
    return found


def all_sums(squares: torch.Tensor) -> torch.Tensor:
    """The only rank's sums are those of all."""
    return squares


@pytest.mark.parametrize("rotary_dim", [None, 8, 32])
@pytest.mark.parametrize("kind", [None, "heads of their own", "whole projection"])
def test_every_backend_computes_what_a_layer_asks_before_attention(rotary_dim, kind):
    """RoPE of no head (NoPE), a part and all of it, after norms that no backend knows by itself."""
    batch = make_batch([(3, 20), (1, 7)], heads=4, kv_heads=2, head_dim=32)
    angles = torch.randn(4, 1, (rotary_dim or 0) // 2)
    rope = None if rotary_dim is None else Rope(angles.cos(), angles.sin())
    norm = None
    if kind == "heads of their own":
        norm = QKNorm(*(NormWeights(torch.rand(heads, 32), 1e-6, "layer") for heads in (4, 2)))
    elif kind is not None:
        weights = (NormWeights(torch.rand(heads, 32), 1e-6) for heads in (4, 2))
        norm = QKNorm(*weights, WholeProjection(4 * 32, 2 * 32, all_sums))
    expected = [*heads_by_hand(batch, rope, norm), batch.step_value.double()]
    for backend in (TorchAttention(), CPUAttention(_PlainKernels())):
        cache = poisoned_cache(TorchAttention(), batch)
        metadata = backend.prepare(batch.inputs, 0, 16, None)
        query = write_heads(backend, cache, projection(batch), rope, norm, metadata)
        slots = batch.inputs.slot_mapping[0]
        found = query, cache.key.flatten(0, 1)[slots], cache.value.flatten(0, 1)[slots]
        for ours, exact in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_ranks_that_share_a_projection_normalise_as_one():
    """OLMo2's norm over all heads of a token: each rank adds what squares of its heads sum up to."""
    batch = make_batch([(3, 20)], heads=4, kv_heads=2, head_dim=16)
    weights = torch.rand(4, 16), torch.rand(2, 16)
    whole = QKNorm(*(NormWeights(weight, 1e-6) for weight in weights), WholeProjection(64, 32, all_sums))
    together = normalise(projection(batch), 2, whole)
    parts, sums = [], []
    for gather in (True, False):
        for rank in range(2):
            query, key = slice(2 * rank, 2 * rank + 2), slice(rank, rank + 1)
            heads = torch.cat((batch.query[:, query], batch.step_key[:, key], batch.step_value[:, key]), dim=1)
            reduce = (lambda x: sums.append(x) or x) if gather else (lambda _: sums[0] + sums[1])
            norms = NormWeights(weights[0][query], 1e-6), NormWeights(weights[1][key], 1e-6)
            found = normalise(heads, 1, QKNorm(*norms, WholeProjection(64, 32, reduce)))
            if not gather:
                parts.append(found)
    split = [split_heads(part, 1) for part in parts]
    for ours, exact in zip(zip(*split, strict=True), split_heads(together, 2), strict=True):
        torch.testing.assert_close(torch.cat(ours, dim=1), exact)
