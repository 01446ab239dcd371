"""Bidirectional attention (encoders), in which a query sees later tokens too: over whole prompts, without a cache.

PyTorch's scaled dot product attention computes it, on CPUs and GPUs. Prompts of similar length are computed together,
padded to the longest; prompts with windows are computed one by one, in tiles, as a mask of all pairs of tokens would
take too much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

DistanceTerms = Callable[[int], Tensor]
"""Returns the terms that are added to scaled scores for the distances of key and query from 1 - n to n - 1, for the
length n of a prompt: [H, 2 n - 1]."""

_TILE = 512
"""The most query tokens that are computed at once if there are windows."""
_FARTHEST = 128
"""The distance in tokens from which all keys have the same term, in T5's buckets and MPNet's."""
_PADDED = 1 << 14
"""The most tokens of prompts that are computed together, padding included, unless a single prompt has more."""


def attend_bidirectional(
    heads: Tensor,
    kv_heads: int,
    lengths: Sequence[int],
    scale: float,
    window: int | None,
    distance_terms: DistanceTerms | None = None,
) -> Tensor:
    """Return attention [T, H, D] of rotated queries, keys and values [T, H + 2 K, D] of prompts of `lengths` tokens.

    `window`: how many tokens a query sees to each side, its own included; None: all. `distance_terms` are added to
    scaled scores, by the distance of key and query; not together with a window.
    """
    query, key, value = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    output = torch.empty_like(query)
    starts = [0, *accumulate(lengths)]
    if distance_terms is not None or (window is not None and max(lengths) > window):
        for start, length in zip(starts, lengths, strict=False):
            own = slice(start, start + length)
            parts = query[own], key[own], value[own], scale
            output[own] = (
                _with_distances(*parts, distance_terms)
                if distance_terms is not None
                else _windowed(*parts, length if window is None else window)
            )
        return output
    for together in _alike(lengths):
        rows, seen = _padded([(starts[index], lengths[index]) for index in together], heads.device)
        mask = None if bool(seen.all()) else seen[:, None, None, :]
        attended = _attend(query[rows], key[rows], value[rows], mask, scale)
        output[rows[seen]] = attended[seen]
    return output


def scratch_bytes(
    heads: int, head_dim: int, max_tokens: int, longest: int, itemsize: int, *, distances: bool = False
) -> int:
    """Return an upper bound of the bytes of padded copies of arguments and result, of masks and of scores.

    `distances`: whether terms are added to scores by distance.
    """
    tokens = min(2 * max_tokens, max(_PADDED, longest))
    mask = 5 * max(tokens, _TILE * longest)  # a mask's bytes, which PyTorch may convert to floats
    terms = (8 + 3 * itemsize * heads) * _TILE * longest if distances else 0
    return 8 * tokens * heads * head_dim * itemsize + mask + 4 * heads * _TILE * longest + terms


def terms_of_buckets(table: Tensor) -> DistanceTerms:
    """Return the terms by distance that are the rows of `table` [buckets, H], one for each bucket of distances."""
    return lambda longest: table[distance_buckets(longest, len(table), table.device)].T.contiguous()


def distance_buckets(longest: int, buckets: int, device: torch.device) -> Tensor:
    """Return the bucket of each distance of key and query from `1 - longest` to `longest - 1`, int64 [2 longest - 1].

    T5's buckets (arXiv 1910.10683): half of them for each direction, of which half hold one distance each and others
    grow logarithmically up to 128 tokens; the last holds all that are farther.
    """
    distance = torch.arange(1 - longest, longest, device=device)
    half = buckets // 2
    exact, far = half // 2, distance.abs()
    steps = (far.float() / exact).log() / math.log(_FARTHEST / exact) * (half - exact)
    logarithmic = (exact + steps.clamp(min=0).long()).clamp(max=half - 1)
    return half * (distance > 0) + torch.where(far < exact, far, logarithmic)


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices of prompts that are computed together: none is more than twice as long as the shortest."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = found[-1] if found else []
        if last and lengths[index] <= 2 * lengths[last[0]] and lengths[index] * (len(last) + 1) <= _PADDED:
            last.append(index)
        else:
            found.append([index])
    return found


def _padded(places: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the rows [N, L] of N prompts, padded with each prompt's first row, and which are not padding."""
    starts, counts = torch.tensor(places, device=device).unbind(1)
    columns = torch.arange(max(count for _, count in places), device=device)
    seen = columns < counts[:, None]
    return starts[:, None] + columns * seen, seen


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend queries [N, Q, H, D] to [N, L, K, D]; `mask` [N or 1, H or 1, Q or 1, L] is True where a token is
    seen, or is added to scaled scores."""
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return attended.transpose(1, 2)


def _windowed(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
    """Compute the windowed attention of one prompt [L, H, D]."""
    length, output = len(query), torch.empty_like(query)
    for start in range(0, length, _TILE):
        end = min(start + _TILE, length)
        first, last = max(0, start - window + 1), min(length, end + window - 1)
        queries = torch.arange(start, end, device=query.device)[:, None]
        near = (queries - torch.arange(first, last, device=query.device)).abs() < window
        parts = (query[None, start:end], key[None, first:last], value[None, first:last])
        output[start:end] = _attend(*parts, near[None, None], scale)[0]
    return output


def _with_distances(query: Tensor, key: Tensor, value: Tensor, scale: float, terms: DistanceTerms) -> Tensor:
    """Compute the attention of one prompt [L, H, D] whose scores have terms for distances."""
    length, output = len(query), torch.empty_like(query)
    by_distance = terms(length).to(query.dtype)
    keys = torch.arange(length, device=query.device)
    for start in range(0, length, _TILE):
        end = min(start + _TILE, length)
        distances = keys - torch.arange(start, end, device=query.device)[:, None] + length - 1
        added = by_distance[:, distances]
        output[start:end] = _attend(query[None, start:end], key[None], value[None], added[None], scale)[0]
    return output
