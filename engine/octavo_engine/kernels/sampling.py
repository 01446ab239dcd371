"""Samples tokens from logits, without a softmax and without sorting.

A greedy token is the argmax of the logits, a drawn one that of logits / temperature + Gumbel noise (the Gumbel-max
trick: Gumbel 1954; Maddison, Tarlow, Minka 2014), so that either needs one pass over the logits, split over the
vocabulary. Among equals the smallest token id is taken.

Top-k, top-p and min-p each keep the tokens whose logit is at least some threshold. A token is kept by top-k if less
than k tokens have a larger logit, and by top-p if the tokens with a larger logit have less than p of the mass that
top-k left: equals are kept or dropped together. Both say "the weight above it is less than a target", with a weight of
1 or of exp((logit - largest) / temperature), and a search over the values finds the smallest one of which it is true,
as in FlashInfer's sorting-free sampling (Ye et al. 2025) and vLLM's topk_topp_triton (Qrita, Park et al.). Masses are
integers: however they are added up, a row's threshold is the same.

The search reads little of a row. It is done first on the maxima of groups of 128 logits, which are some of the logits,
so that the weight above a value is at least that of the maxima above it: the threshold found is a lower bound, and only
groups that reach it need to be read again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

PART = 4096
"""Logits of one program where the vocabulary is split."""
_GROUP = tl.constexpr(128)
"""Logits of which one maximum is kept."""
_TILE_GROUPS = tl.constexpr(8)
"""Groups that the search reads at once."""
_TILE_MAXIMA = tl.constexpr(1024)
"""Maxima that are read at once."""
_LOWEST = tl.constexpr(-2139095041)
"""sort_key(-inf)"""
_PIVOTS = tl.constexpr(16)
"""Values that a round of the search tries: a float32 is found in at most 8."""
_ONE = tl.constexpr(float(1 << 40))
"""The integer mass of the likeliest token: sums of 4 million such still fit into 63 bits."""


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """The sampling parameters of R rows: tensors [R] on the device, integers int64, the rest float32."""

    temperatures: torch.Tensor
    """0 or less is greedy, whatever the filters say."""
    top_ks: torch.Tensor
    """0 keeps all."""
    top_ps: torch.Tensor
    """1 keeps all."""
    min_ps: torch.Tensor
    """0 keeps all."""
    seeds: torch.Tensor
    positions: torch.Tensor
    """The position that each row's token will have in its sequence."""


@triton.jit
def sort_key(values):
    """Return int32 keys in the order of the float32 `values`; -0 counts as 0."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """Return the float32 number that has this `sort_key`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def mix64(state):
    """SplitMix64's output for a state, uint64 (Steele, Lea, Flood 2014)."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def uniform(seed, position, tokens):
    """Return a float32 in (0, 1] for each of `tokens`: (its 31 bits + 0.5) / 2^31.

    The bits are the uppermost of output number `token` of a SplitMix64 that seed and position begin.
    """
    stream = mix64(seed.to(tl.uint64) * 0x9E3779B97F4A7C15 + (position + 1).to(tl.uint64) * 0xD1B54A32D192ED03)
    bits = mix64(stream + (tokens + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    return ((bits >> 33).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / (1 << 31))


@triton.jit
def gumbel(u):
    """Return -log(-log(1 - u)); for small u, where winners lie, a series replaces log(1 - u), which loses digits."""
    series = u * (1.0 + u * (1.0 / 2 + u * (1.0 / 3 + u * (1.0 / 4))))
    exponential = tl.where(u < 0.02, series, -tl.log(1.0 - tl.minimum(u, 1.0 - 1.0 / (1 << 24))))
    return -tl.log(exponential)


@triton.jit
def is_filtered(row, temperatures, top_ks, top_ps, min_ps):
    """Return true if a row may draw only some tokens."""
    asked = (tl.load(top_ks + row) > 0) | (tl.load(top_ps + row) < 1.0) | (tl.load(min_ps + row) > 0.0)
    return asked & (tl.load(temperatures + row) > 0.0)


# Columns of one tensor begin where the number of rows puts them: not specialised on, to compile no kernel again.
@triton.jit(do_not_specialize=["top_ps", "min_ps"])
def group_maxima_kernel(
    maxima,  # [R, num_groups]
    logits,  # [R, V]
    temperatures,  # [R], as the next three
    top_ks,
    top_ps,
    min_ps,
    stride,
    vocab,
    num_groups,
    TILE_GROUPS: tl.constexpr,
):
    """One program takes TILE_GROUPS groups of one row. Logits that are not finite count as -inf."""
    row = tl.program_id(0).to(tl.int64)
    if is_filtered(row, temperatures, top_ks, top_ps, min_ps):
        groups = tl.program_id(1) * TILE_GROUPS + tl.arange(0, TILE_GROUPS)
        columns = groups[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        x = tl.load(logits + row * stride + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
        x = tl.where(x < float("inf"), x, float("-inf"))
        tl.store(maxima + row * num_groups + groups, tl.max(x, axis=1), mask=groups < num_groups)


@triton.jit
def weight_above(values, listed, count, size, pivots, peak, inverse, LISTED: tl.constexpr, UNIT: tl.constexpr):
    """Return the weight [P], int64, of the `values` [size] above each of the keys `pivots` [P].

    Values are read in groups: those whose numbers are `listed` [count], or the first `count`. A value weighs 1 if UNIT.
    """
    weights = tl.zeros_like(pivots).to(tl.int64)
    for start in range(0, count, _TILE_GROUPS):
        groups = start + tl.arange(0, _TILE_GROUPS)
        known = groups < count
        if LISTED:
            groups = tl.load(listed + groups, mask=known, other=0)
        columns = groups[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        x = tl.load(values + columns, mask=known[:, None] & (columns < size), other=float("-inf")).to(tl.float32)
        x = tl.reshape(tl.where(x < float("inf"), x, float("-inf")), [_TILE_GROUPS * _GROUP])
        above = sort_key(x)[:, None] > pivots[None, :]
        if UNIT:
            weights += tl.sum(above.to(tl.int32), axis=0)
        else:
            mass = (tl.exp((x - peak) * inverse) * _ONE).to(tl.int64)
            weights += tl.sum(tl.where(above, mass[:, None], 0), axis=0)
    return weights


@triton.jit
def search(values, listed, count, size, low, high, target, peak, inverse, LISTED: tl.constexpr, UNIT: tl.constexpr):
    """Return the smallest key from low to high with less weight than `target` above it; no key is above high."""
    low = low.to(tl.int64)
    high = high.to(tl.int64)
    while low < high:
        step = (high - low + _PIVOTS - 1) // _PIVOTS
        pivots = tl.minimum(low + step * tl.arange(0, _PIVOTS), high).to(tl.int32)
        weights = weight_above(values, listed, count, size, pivots, peak, inverse, LISTED, UNIT)
        too_low = tl.sum((weights >= target).to(tl.int64), axis=0)  # of the pivots, the first ones
        high = tl.minimum(high, low + step * too_low)
        low = tl.where(too_low > 0, low + step * (too_low - 1) + 1, low)
    return low.to(tl.int32)


@triton.jit
def list_groups(listed, maxima, num_groups, low):
    """Write the numbers of the groups whose maximum is not below the key `low` to `listed`; how many there are."""
    count = 0
    tl.debug_barrier()  # no thread reads the old list any more
    for start in range(0, num_groups, _TILE_MAXIMA):
        groups = start + tl.arange(0, _TILE_MAXIMA)
        x = tl.load(maxima + groups, mask=groups < num_groups, other=float("-inf"))
        chosen = ((sort_key(x) >= low) & (groups < num_groups)).to(tl.int32)
        tl.store(listed + count + tl.cumsum(chosen, axis=0) - 1, groups, mask=chosen > 0)
        count += tl.sum(chosen, axis=0)
    tl.debug_barrier()  # what one thread has written others read
    return count


@triton.jit
def search_row(logits, maxima, listed, vocab, num_groups, low, high, target, peak, inverse, UNIT: tl.constexpr):
    """Run `search` over a row's logits, and read only the groups that can matter."""
    count = (num_groups + _GROUP - 1) // _GROUP
    low = search(maxima, listed, count, num_groups, low, high, target, peak, inverse, False, UNIT)
    count = list_groups(listed, maxima, num_groups, low)
    return search(logits, listed, count, vocab, low, high, target, peak, inverse, True, UNIT)


@triton.jit
def largest(maxima, num_groups):
    """Return the largest finite logit of a row, or 0."""
    peaks = tl.full([_TILE_MAXIMA], float("-inf"), tl.float32)
    for start in range(0, num_groups, _TILE_MAXIMA):
        groups = start + tl.arange(0, _TILE_MAXIMA)
        peaks = tl.maximum(peaks, tl.load(maxima + groups, mask=groups < num_groups, other=float("-inf")))
    peak = tl.max(peaks, axis=0)
    return tl.where(peak > float("-inf"), peak, 0.0)


@triton.jit(do_not_specialize=["top_ps", "min_ps"])
def threshold_kernel(
    thresholds,  # [R]
    logits,  # [R, V]
    maxima,  # [R, num_groups]
    listed,  # [R, num_groups], scratch
    temperatures,  # [R], as the next three
    top_ks,
    top_ps,
    min_ps,
    stride,
    vocab,
    num_groups,
):
    """One program finds the smallest logit that one row may draw, -inf if any."""
    row = tl.program_id(0).to(tl.int64)
    if not is_filtered(row, temperatures, top_ks, top_ps, min_ps):
        tl.store(thresholds + row, float("-inf"))
        return
    logits += row * stride
    maxima += row * num_groups
    listed += row * num_groups
    peak = largest(maxima, num_groups)
    temperature = tl.load(temperatures + row)
    inverse = 1.0 / temperature
    low = tl.full([], _LOWEST, tl.int32)
    high = sort_key(peak)
    top_k = tl.load(top_ks + row)
    if top_k > 0:
        low = search_row(logits, maxima, listed, vocab, num_groups, low, high, top_k, peak, inverse, True)
    top_p = tl.load(top_ps + row)
    if top_p < 1.0:
        count = list_groups(listed, maxima, num_groups, low)
        below = tl.full([1], 0, tl.int32) + (low - 1)
        mass = tl.sum(weight_above(logits, listed, count, vocab, below, peak, inverse, True, False), axis=0)
        target = tl.ceil(mass.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64)
        low = search_row(logits, maxima, listed, vocab, num_groups, low, high, target, peak, inverse, False)
    min_p = tl.load(min_ps + row)
    if min_p > 0.0:
        low = tl.maximum(low, sort_key(peak + temperature * tl.log(min_p)))
    tl.store(thresholds + row, key_value(low))


@triton.jit(do_not_specialize=["peaks", "positions"])
def draw_kernel(
    scores,  # [R, parts], the best of each part
    tokens,  # [R, parts], whose it is
    peaks,  # [R, parts], the largest logit; inf if one is not a number
    logits,  # [R, V]
    thresholds,  # [R], as the next three
    temperatures,
    seeds,
    positions,
    stride,
    vocab,
    PART: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """One program takes PART logits of one row."""
    row = tl.program_id(0).to(tl.int64)
    part = row * tl.num_programs(1) + tl.program_id(1)
    columns = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = columns < vocab
    x = tl.load(logits + row * stride + columns, mask=inside, other=float("-inf")).to(tl.float32)
    score = tl.where(x == x, x, float("inf"))  # noqa: PLR0124 - only what is no number differs from itself
    tl.store(peaks + part, tl.max(score, axis=0))
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        noise = gumbel(uniform(tl.load(seeds + row), tl.load(positions + row), columns.to(tl.int64)))
        # A logit so low that it leaves float32's range here is still more than none at all.
        noisy = tl.maximum(x * (1.0 / temperature) + noise, -3.4028234663852886e38)
        kept = x > float("-inf")
        if FILTERED:
            kept = kept & (x >= tl.load(thresholds + row))
        score = tl.where(kept, noisy, float("-inf"))
    best = tl.max(score, axis=0)
    tl.store(scores + part, best)
    tl.store(tokens + part, tl.min(tl.where((score == best) & inside, columns, vocab), axis=0))


@triton.jit(do_not_specialize=["peaks"])
def pick_kernel(
    chosen,  # [R]
    finite,  # [R]
    scores,  # [R, parts], as the next two
    tokens,
    peaks,
    parts,
    vocab,
    PARTS_PADDED: tl.constexpr,
):
    """One program takes the best of one row's parts."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PARTS_PADDED)
    inside = columns < parts
    places = row * parts + columns
    score = tl.load(scores + places, mask=inside, other=float("-inf"))
    token = tl.load(tokens + places, mask=inside, other=vocab)
    best = tl.max(score, axis=0)
    tl.store(chosen + row, tl.min(tl.where(score == best, token, vocab), axis=0).to(tl.int64))
    peak = tl.max(tl.load(peaks + places, mask=inside, other=float("-inf")), axis=0)
    tl.store(finite + row, tl.abs(peak) < float("inf"))


def keep_thresholds(logits: torch.Tensor, columns: SamplingColumns) -> torch.Tensor:
    """Return the smallest logit [R], float32, that each row of `logits` [R, V] may draw; -inf if it may draw any.

    `logits` are float32, bfloat16 or float16, each row in one piece.
    """
    rows, vocab = logits.shape
    num_groups = triton.cdiv(vocab, _GROUP.value)
    maxima = torch.empty(rows, num_groups, dtype=torch.float32, device=logits.device)
    listed = torch.empty(rows, num_groups, dtype=torch.int32, device=logits.device)
    thresholds = torch.empty(rows, dtype=torch.float32, device=logits.device)
    asked = (columns.temperatures, columns.top_ks, columns.top_ps, columns.min_ps)
    sizes = (logits.stride(0), vocab, num_groups)
    tile = PART // _GROUP.value
    group_maxima_kernel[rows, triton.cdiv(num_groups, tile)](maxima, logits, *asked, *sizes, TILE_GROUPS=tile)
    threshold_kernel[rows,](thresholds, logits, maxima, listed, *asked, *sizes, num_warps=8)
    return thresholds


def sample_tokens(
    logits: torch.Tensor, columns: SamplingColumns, *, filtered: bool, part: int = PART
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample a token [R], int64, for each row of `logits` [R, V]; also return whether they were finite [R], bool.

    `logits` are float32, bfloat16 or float16, each row in one piece; some may be -inf, but not all. A row that is not
    finite gets some token. Not `filtered` means that no row that draws asks for top-k, top-p or min-p. `part`, a power
    of two, is how many logits one program takes; tokens do not depend on it.
    """
    rows, vocab = logits.shape
    device = logits.device
    parts = triton.cdiv(vocab, part)
    scores, peaks = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
    tokens = torch.empty(rows, parts, dtype=torch.int32, device=device)
    chosen = torch.empty(rows, dtype=torch.int64, device=device)
    finite = torch.empty(rows, dtype=torch.bool, device=device)
    draw_kernel[rows, parts](
        scores,
        tokens,
        peaks,
        logits,
        keep_thresholds(logits, columns) if filtered else columns.temperatures,
        columns.temperatures,
        columns.seeds,
        columns.positions,
        logits.stride(0),
        vocab,
        PART=part,
        FILTERED=filtered,
        num_warps=8,
    )
    padded = triton.next_power_of_2(parts)
    pick_kernel[rows,](chosen, finite, scores, tokens, peaks, parts, vocab, PARTS_PADDED=padded)
    return chosen, finite
