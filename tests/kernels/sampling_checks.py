"""Checks of the sampling kernels: greedy and random tokens, and the tokens that filters keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.sampling import (
    SamplingColumns,
    draw_kernel,
    group_maxima_kernel,
    keep_thresholds,
    pick_kernel,
    sample_tokens,
    threshold_kernel,
    uniform,
)
from octavo_engine.sampling_params import SamplingParams
from tests.kernels.check import Build, Check
from tests.sampling import SampleRow, sample_rows

_MASK = (1 << 64) - 1


def columns_of(
    rows: int,
    device: torch.device,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 7,
    position: int = 5,
) -> SamplingColumns:
    """The same for all rows."""

    def whole(value: int) -> Tensor:
        return torch.full((rows,), value, dtype=torch.int64, device=device)

    def number(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float32, device=device)

    return SamplingColumns(
        number(temperature), whole(top_k), number(top_p), number(min_p), whole(seed), whole(position)
    )


def _mix64(state: int) -> int:
    """SplitMix64's output function, in Python's own integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
    return state ^ (state >> 31)


def reference_uniform(seed: int, position: int, tokens: range) -> Tensor:
    """float32 [tokens]: the upper 31 bits of the stream's outputs, and a half."""
    golden = 0x9E3779B97F4A7C15
    stream = _mix64((seed * golden + (position + 1) * 0xD1B54A32D192ED03) & _MASK)
    bits = [_mix64((stream + (token + 1) * golden) & _MASK) >> 33 for token in tokens]
    return (torch.tensor(bits, dtype=torch.float32) + 0.5) * 2.0**-31


_SLACK = 1e-6
"""Of a row's mass: exp2 of a GPU is right to some 2^-22 of each weight, where the interpreter's is exact."""


def reference_kept(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, slack: float = 0.0
) -> Tensor:
    """Return the tokens of one row [V] that may be drawn, by sorting and adding up in float64.

    Top-k and top-p keep or drop equal logits together, top-p by what comes before the first of them. With a `slack`
    also those that would be with so much more mass, or fewer where it is negative.
    """
    ordered, order = logits.double().sort(descending=True)
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if 0 < top_k < len(ordered):
        kept &= ordered >= ordered[top_k - 1]
    weights = torch.where(kept, torch.exp((ordered - ordered[0]) / temperature), 0.0)
    first = torch.searchsorted(-ordered, -ordered)  # of those that are equal
    before = (weights.cumsum(0) - weights)[first]
    if top_p < 1:
        kept &= before < (torch.tensor(top_p, dtype=torch.float32).double() + slack) * weights.sum()
    kept &= weights >= torch.tensor(min_p, dtype=torch.float32).double() - slack
    return torch.zeros_like(kept).scatter(0, order, kept)


@triton.jit
def _uniform_kernel(output, seeds, positions, COUNT: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    tokens = tl.arange(0, COUNT)
    numbers = uniform(tl.load(seeds + row), tl.load(positions + row), tokens.to(tl.int64))
    tl.store(output + row * COUNT + tokens, numbers)


def _uniform_numbers_are_splitmix64(device: torch.device) -> None:
    seeds = [0, 7, -1, (1 << 63) - 1, -(1 << 63)]
    positions = [0, 1, 131071, (1 << 31) + 5, 3]
    output = torch.full((5, 64), torch.nan, device=device)
    _uniform_kernel[5,](output, torch.tensor(seeds, device=device), torch.tensor(positions, device=device), COUNT=64)
    expected = torch.stack([reference_uniform(s, p, range(64)) for s, p in zip(seeds, positions, strict=True)])
    assert torch.equal(output.cpu(), expected), "bit by bit"
    assert len(output.unique()) == 5 * 64


def _greedy_takes_the_first_of_the_largest(device: torch.device, vocab: int, dtype: torch.dtype, part: int) -> None:
    logits = (torch.randn(6, vocab, device=device) * 2).round().to(dtype)  # many are equal
    logits[1] = 1.0
    logits[2] = -torch.inf
    logits[2, vocab - 1] = -3.0
    logits[3, [vocab // 2, vocab - 1]] = 3e38
    logits[4] = -3.3e38
    columns = columns_of(6, device, temperature=0.0, top_k=3, top_p=0.1)
    tokens, finite = sample_tokens(logits, columns, filtered=False, part=part)
    expected = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert tokens.tolist() == expected
    assert finite.tolist() == [True] * 6
    assert sample_tokens(logits, columns, filtered=True, part=part)[0].tolist() == expected


def _draws_are_the_gumbel_argmax(device: torch.device, vocab: int) -> None:
    """Against float64 noise of the same numbers, among what the filters keep."""
    logits = torch.randn(4, vocab, device=device) * 3
    columns = columns_of(4, device, temperature=0.7, top_k=40, top_p=0.9)
    columns = replace(
        columns, seeds=torch.tensor([1, 2, -3, 4], device=device), positions=torch.arange(4, device=device)
    )
    tokens, _ = sample_tokens(logits, columns, filtered=True)
    for row, token in enumerate(tokens.tolist()):
        numbers = reference_uniform(int(columns.seeds[row]), row, range(vocab)).double()
        noise = -torch.log(-torch.log1p(-numbers.clamp(max=1 - 2.0**-24)))
        values = logits[row].cpu()
        kept = reference_kept(values, 0.7, 40, 0.9, 0.0)
        scores = torch.where(kept, values.double() / 0.7 + noise, -torch.inf)
        assert token == int(scores.argmax())


ROWS: dict[str, Callable[[int], Tensor]] = {
    "random": lambda vocab: torch.randn(vocab) * 3,
    "nearly flat": lambda vocab: torch.randn(vocab) * 0.001,
    "coarse": lambda vocab: (torch.randn(vocab) * 2).round(),
    "all equal": lambda vocab: torch.full((vocab,), -2.5),
    "one peak": lambda vocab: torch.zeros(vocab).index_fill(0, torch.tensor([vocab // 2]), 60.0),
    "some -inf": lambda vocab: torch.where(torch.rand(vocab) < 0.7, -torch.inf, torch.randn(vocab)),
    "all but one -inf": lambda vocab: torch.full((vocab,), -torch.inf).index_fill(0, torch.tensor([vocab - 1]), 0.0),
    "extreme": lambda vocab: torch.randn(vocab) * 1e37,
    "zeros of both signs": lambda vocab: torch.where(torch.rand(vocab) < 0.5, -0.0, 0.0),
}
FILTERS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 200},
    {"top_k": 1 << 31},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.7, "min_p": 0.05},
]


def _filters_keep_what_they_should(
    device: torch.device, vocab: int, kinds: list[str], filters: slice, dtype: torch.dtype
) -> None:
    """All at once, a row for each kind of logits and each filter."""
    pairs = [(kind, wanted) for kind in kinds for wanted in FILTERS[filters]]
    logits = torch.stack([ROWS[kind](vocab) for kind, _ in pairs]).to(dtype)
    columns = columns_of(len(pairs), device)
    for row, (_, wanted) in enumerate(pairs):
        for name, value in wanted.items():
            getattr(columns, f"{name}s")[row] = value
    # Rows need not lie close together.
    wide = torch.full((len(pairs), vocab + 3), torch.nan, dtype=dtype, device=device)
    wide[:, :vocab] = logits
    kept = logits >= keep_thresholds(wide[:, :vocab], columns).cpu()[:, None]
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for row, (kind, wanted) in enumerate(pairs):
        slack = _SLACK if device.type == "cuda" else 0.0
        least, most = (
            reference_kept(logits[row], **{**defaults, **wanted}, slack=each)  # type: ignore[arg-type]
            for each in (-slack, slack)
        )
        # The likeliest token is kept by any filter.
        least |= logits[row] == logits[row].max()
        counts = [int(tokens.sum()) for tokens in (least, kept[row], most)]
        assert bool((kept[row] | ~least).all() and (most | ~kept[row]).all()), (kind, wanted, counts)


def _draws_come_as_often_as_their_probability(
    device: torch.device, rows: int, filters: dict[str, float], temperature: float
) -> None:
    """Chi-squared over seeds and positions, 13 tokens; p < 0.001 at 32.9 for 12 degrees of freedom."""
    values = torch.randn(13)
    columns = columns_of(rows, device, temperature=temperature, **filters)  # type: ignore[arg-type]
    columns = replace(
        columns,
        seeds=torch.arange(rows, device=device) // 2,
        positions=torch.arange(rows, device=device) % 2,
    )
    tokens, _ = sample_tokens(values.to(device).expand(rows, -1), columns, filtered=bool(filters), part=16)
    wanted = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters}
    kept = reference_kept(values, temperature, **wanted)  # type: ignore[arg-type]
    expected = torch.softmax(torch.where(kept, values / temperature, -torch.inf), 0) * rows
    counts = torch.bincount(tokens.cpu(), minlength=13)
    assert int(counts[~kept].sum()) == 0
    chi2 = ((counts - expected) ** 2 / expected)[kept].sum()
    assert chi2 < 32.9, f"chi-squared {chi2:.1f}"


def _a_token_is_its_rows_own(device: torch.device, vocab: int) -> None:
    """Neither its company, nor its place, nor how the vocabulary is cut matters; seed and position do."""
    logits = torch.randn(6, vocab, device=device)
    columns = SamplingColumns(
        temperatures=torch.tensor([1.0, 0.0, 0.7, 1.3, 1.0, 0.9], device=device),
        top_ks=torch.tensor([0, 3, 50, 0, 0, 300], device=device),
        top_ps=torch.tensor([1.0, 0.5, 1.0, 0.9, 1.0, 0.8], device=device),
        min_ps=torch.tensor([0.0, 0.0, 0.0, 0.0, 0.02, 0.0], device=device),
        seeds=torch.arange(6, device=device),
        positions=torch.arange(10, 16, device=device),
    )
    tokens = sample_tokens(logits, columns, filtered=True)[0].tolist()

    def again(rows: list[int], part: int = 4096) -> list[int]:
        some = SamplingColumns(*(getattr(columns, name)[rows] for name in columns.__slots__))
        return sample_tokens(logits[rows], some, filtered=True, part=part)[0].tolist()

    assert again([0, 1, 2, 3, 4, 5], part=256) == tokens
    assert again([5, 3, 2, 0]) == [tokens[i] for i in (5, 3, 2, 0)]
    assert again([4], part=128) == [tokens[4]]
    moved = replace(columns, positions=columns.positions + 1)
    reseeded = replace(columns, seeds=columns.seeds + 1)
    for other in (moved, reseeded):
        news = sample_tokens(logits, other, filtered=True)[0].tolist()
        assert news[1] == tokens[1], "greedy"
        assert sum(new != old for new, old in zip(news, tokens, strict=True)) >= 3


def _only_the_broken_row_is_broken(device: torch.device) -> None:
    logits = torch.randn(6, 300, device=device)
    good = logits.clone()
    logits[1, 17] = math.nan
    logits[2, 299] = math.inf
    logits[4] = -math.inf
    logits[5] = math.nan
    for filters in ({"temperature": 0.0}, {}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}):
        columns = columns_of(6, device, **filters)  # type: ignore[arg-type]
        tokens, finite = sample_tokens(logits, columns, filtered=True)
        assert finite.tolist() == [True, False, False, True, False, False]
        assert ((tokens >= 0) & (tokens < 300)).all(), "what is computed on next"
        expected = sample_tokens(good, columns, filtered=True)[0]
        assert tokens[[0, 3]].tolist() == expected[[0, 3]].tolist()


def _the_sampler_draws_by_these_kernels(device: torch.device) -> None:
    """`sample` with all that a row may ask, against the kernels called with what its columns must be."""
    logits = torch.randn(4, 500, device=device)
    plain = SamplingParams(max_tokens=9)
    stop = SamplingParams(max_tokens=9, temperature=0.0, min_tokens=4, stop_token_ids=(int(logits[1].argmax()),))
    biased = SamplingParams(max_tokens=9, temperature=1e-6, logit_bias=((17, 100.0), (18, 1.0)))
    filtered = SamplingParams(max_tokens=9, temperature=0.8, top_k=1 << 31, top_p=0.7, logprobs=2, presence_penalty=9.0)
    rows = [
        SampleRow(params, seed, 6, 4)
        for params, seed in zip((plain, stop, biased, filtered), (-5, 1, 2, (1 << 64) - 3), strict=True)
    ]
    known = torch.tensor([1, 1, 2, 3, 20, 21], dtype=torch.int32, device=device)
    sampled = sample_rows(logits, rows, [None, None, None, known])
    assert sampled.finite.tolist() == [True] * 4
    adjusted = logits.clone()
    adjusted[3, 20:22] -= 9.0
    columns = columns_of(4, device, position=6)
    columns = replace(
        columns,
        temperatures=torch.tensor([1.0, 0.0, 0.0, 0.8], device=device),
        top_ps=torch.tensor([1.0, 1.0, 1.0, 0.7], device=device),
        seeds=torch.tensor([-5, 1, 2, -3], device=device),
    )
    expected = sample_tokens(adjusted, columns, filtered=True)[0].tolist()
    assert sampled.tokens.tolist() == [expected[0], int(logits[1].topk(2).indices[1]), 17, expected[3]]
    assert sampled.logprobs is not None
    assert sampled.logprobs.ids.tolist() == logits[3:].topk(2).indices.tolist()
    alone = sample_rows(logits[3:].bfloat16(), rows[3:], [known])
    assert alone.tokens.dtype == torch.int64


_ALL = list(ROWS)
CHECKS = [
    Check("uniform_numbers_are_splitmix64", _uniform_numbers_are_splitmix64),
    *(
        Check(
            f"greedy_takes_the_first_of_the_largest-{vocab}-{str(dtype)[6:]}-{part}",
            partial(_greedy_takes_the_first_of_the_largest, vocab=vocab, dtype=dtype, part=part),
            large=vocab > 10_000,
        )
        for vocab in (17, 1000, 49152, 128256)
        for dtype in (torch.float32, torch.bfloat16)
        for part in (128, 4096)
    ),
    *(
        Check(
            f"draws_are_the_gumbel_argmax-{vocab}",
            partial(_draws_are_the_gumbel_argmax, vocab=vocab),
            large=vocab > 10_000,
        )
        for vocab in (17, 1000, 49152)
    ),
    *(
        Check(
            f"filters_keep-{vocab}-{str(dtype)[6:]}",
            partial(_filters_keep_what_they_should, vocab=vocab, kinds=kinds, filters=filters, dtype=dtype),
        )
        for vocab, kinds, filters, dtype in (
            (17, _ALL, slice(1, None, 2), torch.float32),
            (1000, _ALL, slice(0, None, 2), torch.float32),
            (1000, ["random", "coarse"], slice(1, None, 4), torch.bfloat16),
            (17, ["random", "coarse"], slice(1, None, 4), torch.float16),
            (49152, ["random"], slice(9, 10), torch.float32),
        )
    ),
    *(
        Check(
            f"filters_keep-{vocab}-{str(dtype)[6:]}-large",
            partial(_filters_keep_what_they_should, vocab=vocab, kinds=_ALL, filters=slice(None), dtype=dtype),
            large=True,
        )
        for vocab in (49152, 128256)
        for dtype in (torch.float32, torch.bfloat16)
    ),
    *(
        Check(
            f"draws_come_as_often_as_their_probability-{rows}-{number}",
            partial(_draws_come_as_often_as_their_probability, rows=rows, filters=filters, temperature=temperature),
            large=rows > 10_000,
        )
        for rows in (600, 200_000)
        for number, (filters, temperature) in enumerate(
            [({}, 0.8), ({"min_p": 0.1}, 2.0), ({"top_k": 4}, 1.5), ({"top_k": 9, "top_p": 0.8}, 1.0)]
        )
        if rows > 10_000 or number == 0  # the interpreter searches for 0.1 s a row
    ),
    Check("a_token_is_its_rows_own", partial(_a_token_is_its_rows_own, vocab=1000)),
    Check("a_token_is_its_rows_own-large", partial(_a_token_is_its_rows_own, vocab=128256), large=True),
    Check("only_the_broken_row_is_broken", _only_the_broken_row_is_broken),
    Check("the_sampler_draws_by_these_kernels", _the_sampler_draws_by_these_kernels),
]

_ASKED = {"temperatures": "*fp32", "top_ks": "*i64", "top_ps": "*fp32", "min_ps": "*fp32"}
_SIZES = dict.fromkeys(("stride", "vocab", "num_groups"), "i32")
BUILDS = [
    *(
        Build(
            f"draw-{logits[1:]}-filtered={filtered}",
            draw_kernel,
            {"scores": "*fp32", "tokens": "*i32", "peaks": "*fp32", "logits": logits, "thresholds": "*fp32"}
            | {"temperatures": "*fp32", "seeds": "*i64", "positions": "*i64", "stride": "i32", "vocab": "i32"},
            {"PART": 4096, "FILTERED": filtered},
            warps=8,
            max_registers=96,
            max_shared=256,
        )
        for logits, filtered in (("*bf16", False), ("*bf16", True), ("*fp32", True))
    ),
    Build(
        "group_maxima",
        group_maxima_kernel,
        {"maxima": "*fp32", "logits": "*bf16"} | _ASKED | _SIZES,
        {"TILE_GROUPS": 32},
        max_registers=48,
        max_shared=256,
    ),
    Build(
        "threshold",
        threshold_kernel,
        {"thresholds": "*fp32", "logits": "*bf16", "maxima": "*fp32", "listed": "*i32"} | _ASKED | _SIZES,
        {},
        warps=8,
        max_registers=160,
        max_shared=9 * 1024,
        max_loop={"all": 476},
    ),
    Build(
        "pick",
        pick_kernel,
        {"chosen": "*i64", "finite": "*i1", "scores": "*fp32", "tokens": "*i32", "peaks": "*fp32"}
        | {"parts": "i32", "vocab": "i32"},
        {"PARTS_PADDED": 32},
        max_registers=24,
        max_shared=256,
    ),
]
