"""The Triton backend, run by Triton's interpreter (the stand-in for a GPU), against the torch reference.

Triton decides when it is first imported whether it interprets, so this file needs a process of its own with
TRITON_INTERPRET=1: test_kernels.py starts it.
"""

from __future__ import annotations

import pytest
import torch
from paging import make_batch, plain_attention, run

from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention, interpreted


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


def test_rows_without_context_are_zero(triton_backend):
    batch = make_batch([(1, 5), (1, 1)], heads=2, kv_heads=1, head_dim=64)
    batch.inputs.context_lens[1] = 0
    assert not run(triton_backend, batch)[1].any()
