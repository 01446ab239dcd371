"""Checks of attention over a latent cache against the same in float64."""

from __future__ import annotations

from functools import partial

import torch

from octavo_engine.kernels.attention_reduce import SEGMENTS
from octavo_engine.kernels.latent_attention import (
    ROWS,
    latent_attention,
    latent_attention_kernel,
    latent_scratch_floats,
)
from octavo_engine.kernels.paged_attention import PagedSequences
from tests.kernels.check import Build, Check
from tests.kernels.paged_attention_checks import assert_right


def _check(
    contexts: tuple[int, ...],
    heads: int,
    block_size: int,
    device: torch.device,
    *,
    latent: int = 512,
    dtype: torch.dtype = torch.float32,
) -> None:
    """One decode step over `contexts`, NaN wherever none of them lies and in output and scratch."""
    width, scale = latent + 64, 0.1
    counts = [-(-context // block_size) for context in contexts]
    owned = (1 + torch.randperm(sum(counts))).split(counts)
    cache = torch.full((1 + sum(counts), block_size, width), torch.nan, dtype=dtype)
    tokens = [torch.randn(context, width).to(dtype) for context in contexts]
    for blocks, x in zip(owned, tokens, strict=True):
        places = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[: len(x)]
        cache.flatten(0, 1)[places] = x
    table = torch.nn.utils.rnn.pad_sequence(list(owned), batch_first=True).int()
    query = torch.randn(len(contexts), heads, width).to(dtype)
    count = len(contexts)
    sequences = PagedSequences(
        torch.nn.functional.pad(table, (0, 1)).to(device),
        torch.arange(count + 1, dtype=torch.int32, device=device),
        torch.tensor(contexts, dtype=torch.int32, device=device),
        num_tokens=count,
        max_query_len=1,
    )
    output = torch.full((count, heads, latent), torch.nan, dtype=dtype, device=device)
    scratch = torch.full((latent_scratch_floats(latent),), torch.nan, device=device)
    latent_attention(output, query.to(device), cache.to(device), sequences, scratch, latent=latent, scale=scale)
    for row, x in enumerate(tokens):
        weights = (query[row].double() @ x.double().T * scale).softmax(-1)
        assert_right(output[row].cpu(), weights @ x[:, :latent].double())


CHECKS = [
    Check("heads_of_one_rank", partial(_check, (1, 31, 32, 33, 200), 16, 16, latent=128)),
    Check("odd_heads", partial(_check, (70, 0, 5), 5, 64, latent=64)),
    Check("deepseek_sizes", partial(_check, (1, 129), 32, 64)),
    *(
        Check(f"blocks_of_{size}", partial(_check, (1, size - 1, size, size + 1), 3, size, latent=64))
        for size in (32, 128)
    ),
    Check("context_of_8k", partial(_check, (8192 - 70,), 16, 64, latent=64)),
    Check("not_split", partial(_check, tuple(range(1, 66)), 20, 16, latent=64)),
    Check("long", partial(_check, (8192, 100, 5000), 128, 64, dtype=torch.bfloat16), large=True),
]


_TYPES = (
    dict.fromkeys(("output", "query", "cache"), "*bf16:16")
    | dict.fromkeys(("partial_sums", "partial_maxima", "partial_totals"), "*fp32:16")
    | dict.fromkeys(("block_table", "cu_query_lens", "context_lens"), "*i32")
    | dict.fromkeys(("query_stride", "query_head_stride", "output_stride", "output_head_stride"), "i32:16")
    | {"scale": "fp32", "table_stride": "i32"}
)
BUILDS = [
    Build(
        "latent_attention",
        latent_attention_kernel,
        _TYPES,
        {
            "NUM_HEADS": 128,
            "LATENT": 512,
            "ROTATED": 64,
            "BLOCK_SIZE": 64,
            "ROWS": ROWS,
            "TILE_TOKENS": 32,
            "SEGMENTS": SEGMENTS,
            "PRECISION": "tf32",
        },
        warps=4,
        stages=5,
        max_registers=208,
        max_shared=96 * 1024,
        sass=("LDGSTS.E.BYPASS.128",),
        max_loop={"all": 680},
    )
]
