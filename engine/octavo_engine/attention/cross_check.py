"""A cross-check of attention backends: another project's backend must compute what ours does before it is chosen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from octavo_engine.attention.autotune import attempt, step_of
from octavo_engine.attention.backend import AttentionBackend, AttentionTask, AttentionVariant, KVGroupSpec
from octavo_engine.attention.context import write_heads
from octavo_engine.attention.rope import Rope

log = logging.getLogger(__name__)

_LENS = [(1, 1), (1, 64), (1, 333), (1, 1500), (40, 200), (65, 65)]
"""Decodes, one of them with a context so long that it may be split, and chunks; only one context fills its last
block."""
_TOLERANCES = {torch.float32: 1e-3, torch.float16: 5e-3}
_TOLERANCE = 3e-2
"""The tolerance for bfloat16: results have magnitudes up to about 4, and differ by at most two roundings."""


@torch.inference_mode()
def cross_checked(
    candidates: Sequence[AttentionBackend], task: AttentionTask, device: torch.device
) -> list[AttentionBackend]:
    """Return the first of `candidates` and those that compute the same; the log says why the others are dropped."""
    ours, *others = candidates
    passed = [ours]
    # This comes first, so that no other backend is blamed if ours breaks the device.
    expected = [_results(ours, task, group, device) for group in task.groups]
    tolerance = _TOLERANCES.get(task.dtype, _TOLERANCE)
    for backend in others:
        difference = attempt(backend, "compared with ours", partial(_difference, backend, expected, task, device))
        if difference is None:
            continue
        if difference <= tolerance:
            passed.append(backend)
        else:  # also if the difference is NaN
            log.warning("attention backend %s is not used: its results differ by %.2g", backend.name, difference)
    return passed


def _difference(
    backend: AttentionBackend, expected: Sequence[Tensor], task: AttentionTask, device: torch.device
) -> float:
    """Return the largest difference from the `expected` results; NaN if the backend read a slot never written."""
    differences = []
    for group, wanted in zip(task.groups, expected, strict=True):
        differences.append((_results(backend, task, group, device) - wanted).abs().max())
    return float(torch.stack(differences).max())


def _results(backend: AttentionBackend, task: AttentionTask, group: KVGroupSpec, device: torch.device) -> Tensor:
    """Return attention [T, H, D], float32, of random numbers in a cache that is NaN in all slots never written.

    The copy to the host waits for the device, so that a kernel's error is raised here.
    """
    generator = torch.Generator(device).manual_seed(0)
    num_blocks = sum(-(-context // task.block_size) for _, context in _LENS)
    cache = backend.allocate(replace(group, layers=(0,)), num_blocks, task.block_size, task.kv_dtype, device)[0]
    for blocks in (cache.key, cache.value):
        blocks.copy_(torch.full(blocks.shape, torch.nan, device=device))
    written = step_of([(context, context) for _, context in _LENS], task.block_size, device)
    shape = (len(written.positions), task.num_heads + 2 * group.num_kv_heads, group.head_dim)
    heads = torch.randn(shape, generator=generator, device=device).to(task.dtype)
    angles = torch.zeros(shape[0], 1, group.head_dim // 2, device=device)
    metadata = backend.prepare(written, 0, task.block_size, group.window)
    write_heads(backend, cache, heads, Rope(angles.cos(), angles), None, metadata)
    step = step_of(_LENS, task.block_size, device)
    shape = (len(step.positions), *shape[1:])
    query = torch.randn(shape, generator=generator, device=device).to(task.dtype)[:, : task.num_heads]
    metadata = backend.prepare(step, 0, task.block_size, group.window)
    return backend.attend(query, cache, metadata, AttentionVariant(group.head_dim**-0.5)).float().cpu()
