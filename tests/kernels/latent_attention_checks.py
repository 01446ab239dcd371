"""Checks of attention over a latent cache against the same in float64."""

from __future__ import annotations

from functools import partial

import torch

from octavo_engine.kernels.attention.attention_segments import PagedSequences
from octavo_engine.kernels.attention.latent_attention import (
    ROWS,
    SEGMENTS,
    latent_attention,
    latent_attention_kernel,
    latent_scratch_floats,
)
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
    query_lens: tuple[int, ...] | None = None,
    first_row: int = 0,
    window: int | None = None,
    with_sinks: bool = False,
) -> None:
    """One step over `contexts`, NaN wherever none of them lies and in output and scratch.

    `query_lens` are decodes if they are not given; `first_row` tokens of others stand before the sequences'.
    """
    width, scale = latent + 64, 0.1
    query_lens = (1,) * len(contexts) if query_lens is None else query_lens
    ends = (first_row + torch.tensor((0, *query_lens)).cumsum(0)).tolist()
    counts = [-(-context // block_size) for context in contexts]
    owned = (1 + torch.randperm(sum(counts))).split(counts)
    cache = torch.full((1 + sum(counts), block_size, width), torch.nan, dtype=dtype)
    tokens = [torch.randn(context, width).to(dtype) for context in contexts]
    for blocks, x in zip(owned, tokens, strict=True):
        places = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[: len(x)]
        cache.flatten(0, 1)[places] = x
    table = torch.nn.utils.rnn.pad_sequence(list(owned), batch_first=True).int()
    query = torch.randn(ends[-1], heads, width).to(dtype)
    sequences = PagedSequences(
        torch.nn.functional.pad(table, (0, 1)).to(device),
        torch.tensor(ends, dtype=torch.int32, device=device),
        torch.tensor(contexts, dtype=torch.int32, device=device),
        num_tokens=sum(query_lens),
        max_query_len=max(query_lens),
    )
    output = torch.full((ends[-1], heads, latent), torch.nan, dtype=dtype, device=device)
    scratch = torch.full((latent_scratch_floats(latent),), torch.nan, device=device)
    sinks = torch.randn(heads) if with_sinks else None
    latent_attention(
        output,
        query.to(device),
        cache.to(device),
        sequences,
        scratch,
        latent=latent,
        scale=scale,
        sinks=None if sinks is None else sinks.to(device),
        window=window,
    )
    sink = torch.full((heads, 1), -torch.inf) if sinks is None else sinks[:, None]
    for x, begin, end in zip(tokens, ends, ends[1:], strict=False):
        for row in range(begin, end):
            last = max(0, len(x) - end + row + 1)
            seen = x[0 if window is None else max(0, last - window) : last].double()
            scores = query[row].double() @ seen.T * scale
            weights = torch.cat((scores, sink.double()), dim=-1).softmax(-1)[:, :-1] if last else scores
            assert_right(output[row].cpu(), weights @ seen[:, :latent])


CHECKS = [
    Check("heads_of_one_rank", partial(_check, (1, 31, 32, 33, 200), 16, 16, latent=128)),
    Check("odd_heads", partial(_check, (70, 0, 5), 5, 64, latent=64)),
    Check("deepseek_sizes", partial(_check, (1, 129), 32, 64)),
    *(
        Check(f"blocks_of_{size}", partial(_check, (1, size - 1, size, size + 1), 3, size, latent=64))
        for size in (32, 128)
    ),
    Check("context_of_8k", partial(_check, (8192 - 70,), 16, 64, latent=64)),
    Check("chunks", partial(_check, (40, 7, 33), 5, 16, latent=64, query_lens=(3, 7, 0), first_row=2)),
    Check("chunk_and_heads_of_two_tiles", partial(_check, (70,), 20, 32, latent=64, query_lens=(33,))),
    Check("sinks", partial(_check, (1, 33, 200), 5, 16, latent=64, with_sinks=True)),
    Check("windows", partial(_check, (1, 31, 70, 200), 5, 16, latent=64, window=40, with_sinks=True)),
    Check("windows_of_chunks", partial(_check, (70, 9), 5, 16, latent=64, query_lens=(20, 9), window=11)),
    Check("not_split", partial(_check, tuple(range(1, 66)), 20, 16, latent=64)),
    Check("long", partial(_check, (8192, 100, 5000), 128, 64, dtype=torch.bfloat16), large=True),
    Check(
        "long_chunks",
        partial(_check, (4096, 512), 128, 64, dtype=torch.bfloat16, query_lens=(64, 512)),
        large=True,
    ),
]


_TYPES = (
    dict.fromkeys(("output", "query", "cache"), "*bf16:16")
    | dict.fromkeys(("partial_sums", "partial_maxima", "partial_totals"), "*fp32:16")
    | dict.fromkeys(("block_table", "cu_query_lens", "context_lens"), "*i32")
    | dict.fromkeys(("query_stride", "query_head_stride", "output_stride", "output_head_stride"), "i32:16")
    | {"scale": "fp32", "num_seqs": "i32", "table_stride": "i32"}
)
_CONSTANTS = {
    "NUM_HEADS": 128,
    "LATENT": 512,
    "ROTATED": 64,
    "BLOCK_SIZE": 64,
    "WINDOW": 0,
    "sinks": None,
    "ROWS": ROWS,
    "TILE_TOKENS": 32,
    "PRECISION": "tf32",
}
_NO_PARTIALS = dict.fromkeys(("partial_sums", "partial_maxima", "partial_totals"))
BUILDS = [
    Build(
        "latent_attention",
        latent_attention_kernel,
        _TYPES,
        {**_CONSTANTS, "SEGMENTS": SEGMENTS, "ONE_TOKEN": True},
        warps=4,
        stages=5,
        max_registers=208,
        max_shared=96 * 1024,
        sass=("LDGSTS.E.BYPASS.128",),
        max_loop={"all": 680},
    ),
    Build(
        "latent_attention_prefill",
        latent_attention_kernel,
        {name: kind for name, kind in _TYPES.items() if name not in _NO_PARTIALS},
        {**_CONSTANTS, **_NO_PARTIALS, "SEGMENTS": 1, "ONE_TOKEN": False},
        warps=4,
        stages=5,
        max_registers=208,
        max_shared=96 * 1024,
        sass=("LDGSTS.E.BYPASS.128",),
        max_loop={"all": 740},
    ),
]
