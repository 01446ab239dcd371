"""The Triton backend, run by Triton's interpreter (the stand-in for a GPU), against the torch reference.

Triton decides when it is first imported whether it interprets, so this file needs a process of its own with
TRITON_INTERPRET=1: test_kernels.py starts it.
"""

from __future__ import annotations

import pytest
import torch
from paging import make_batch, plain_attention, poisoned_cache, run
from test_graphs import begin, load_tiny, make_worker

from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention, interpreted
from octavo_engine.core.step import StepPlan


@pytest.fixture
def triton_backend():
    assert interpreted()
    return TritonAttention()


BATCHES = {
    "one_token": [(1, 1)],
    "decodes": [(1, 1), (1, 15), (1, 16), (1, 17), (1, 70)],
    "block_boundaries": [(16, 16), (15, 15), (17, 17), (32, 32)],
    "mixed": [(1, 40), (7, 7), (1, 1), (20, 45), (1, 65), (3, 3)],
}


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1), (6, 2), (8, 1)], ids=["mha", "gqa4", "gqa3", "gqa8"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_equals_the_reference(triton_backend, lens, heads, kv_heads, head_dim):
    batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    torch.testing.assert_close(run(triton_backend, batch), run(TorchAttention(), batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [1, 10, 16, 33])
@pytest.mark.parametrize("lens", [BATCHES["decodes"], BATCHES["mixed"], [(70, 130)]])
def test_sliding_window(triton_backend, lens, window):
    batch = make_batch(lens, heads=4, kv_heads=2, head_dim=64, window=window)
    torch.testing.assert_close(run(triton_backend, batch).double(), plain_attention(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_block_sizes(triton_backend, block_size):
    batch = make_batch(BATCHES["mixed"], heads=4, kv_heads=2, head_dim=64, block_size=block_size)
    torch.testing.assert_close(run(triton_backend, batch).double(), plain_attention(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 1), (5, 1), (24, 1)])
def test_large_and_odd_groups(triton_backend, heads, kv_heads):
    batch = make_batch(BATCHES["mixed"], heads=heads, kv_heads=kv_heads, head_dim=64)
    torch.testing.assert_close(run(triton_backend, batch).double(), plain_attention(batch), rtol=1e-4, atol=1e-5)


def test_float16(triton_backend):
    batch = make_batch(BATCHES["mixed"], heads=4, kv_heads=2, head_dim=64, dtype=torch.float16)
    torch.testing.assert_close(run(triton_backend, batch).double(), plain_attention(batch), rtol=1e-2, atol=1e-2)


def test_writes_slices_of_the_fused_projection_and_skips_padding(triton_backend):
    batch = make_batch([(3, 3)], heads=2, kv_heads=2, head_dim=64)
    cache = poisoned_cache(triton_backend, batch)
    metadata = triton_backend.prepare(batch.inputs, 0, 16, None)
    metadata.slots[1] = -1
    fused = torch.randn(3, 6, 64)
    triton_backend.write(cache, fused[:, 2:4], fused[:, 4:], metadata)
    flat = cache.key.flatten(0, 1), cache.value.flatten(0, 1)
    for token, slot in ((0, metadata.slots[0]), (2, metadata.slots[2])):
        assert torch.equal(flat[0][slot], fused[token, 2:4])
        assert torch.equal(flat[1][slot], fused[token, 4:])
    assert int((~flat[0].isnan()).any(-1).any(-1).sum()) == 2


def test_rows_without_context_are_zero(triton_backend):
    batch = make_batch([(1, 5), (1, 1)], heads=2, kv_heads=1, head_dim=64)
    batch.inputs.context_lens[1] = 0
    assert not run(triton_backend, batch)[1].any()


class Again:
    """In the place of CUDA graphs: what was recorded is called again, on the same buffers."""

    def capture(self, works):
        return list(works)


def test_decodes_padded_to_a_rung_say_the_same(triton_backend, tiny_model):
    model = load_tiny(tiny_model)
    eager, graphed = make_worker(model, None, TritonAttention()), make_worker(model, Again(), triton_backend)
    lengths = [9, 1, 16]
    for row, length in enumerate(lengths):
        plan = begin(row, list(range(length)))
        assert graphed.execute(plan).token_ids == eager.execute(plan).token_ids
    for rows in ([2, 0, 1], [1], [0, 2, 1]):
        plan = StepPlan(0, decode_rows=rows, decode_starts=[lengths[row] for row in rows])
        for row in rows:
            lengths[row] += 1
        got, expected = graphed.execute(plan), eager.execute(plan)
        assert got.token_ids == expected.token_ids
        for index, logprobs in expected.logprobs.items():
            assert got.logprobs[index].logprob == pytest.approx(logprobs.logprob, abs=1e-4)
