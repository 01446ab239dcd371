"""Measures at start which mixture of experts is faster: moe.py's, or PyTorch's grouped product, defined here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.experts.moe import mixture_of_experts

log = logging.getLogger(__name__)

MixtureOfExperts = Callable[[Tensor, Experts, Tensor, Tensor], Tensor]
"""Called as `mixture_of_experts` is, with the same tensors."""


def torch_mixture_of_experts(x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor) -> Tensor:
    """Compute `mixture_of_experts` by torch.nn.functional.grouped_mm over rows sorted by expert.

    On CUDA grouped_mm takes bfloat16, hidden and intermediate multiples of 8, on GPUs from sm_80 on.
    """
    num_experts, top_k = experts.down.shape[0], chosen.shape[1]
    flat = chosen.flatten()
    none = (flat < 0) | (flat >= num_experts)
    flat = torch.where(none, num_experts, flat)
    order = torch.argsort(flat, stable=True)
    numbers = torch.arange(num_experts, device=x.device)
    ends = torch.searchsorted(flat[order], numbers.to(flat.dtype), right=True, out_int32=True)
    expert_of_row = flat[order].clamp_(max=num_experts - 1)

    def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found = torch.nn.functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
        return found if bias is None else found + bias[expert_of_row]

    inner = experts.activate(product(x[order // top_k], experts.gate_up, experts.gate_up_bias))
    routed = product(inner, experts.down, experts.down_bias).float()
    # Rows after the last expert's are undefined: they may be NaN, and stay out by selection rather than by a weight.
    routed = torch.where(none[order, None], 0.0, routed * weights.flatten()[order, None])
    back = torch.empty_like(routed).index_copy_(0, order, routed)
    return back.view(-1, top_k, x.shape[1]).sum(1).to(x.dtype)


def autotune_mixture_of_experts(
    experts: Experts, top_k: int, tokens: int, repeats: int = 20
) -> tuple[MixtureOfExperts, dict[str, float]]:
    """Return the faster of the two in steps of about `tokens` tokens on the weights' GPU, and each one's seconds.

    Measured eagerly on random tokens that choose experts evenly, each call after a warm-up; to be called at start.
    Off a GPU there is nothing to measure, PyTorch's is taken; where PyTorch's does not know the type or fails, ours.
    """
    gate_up = experts.gate_up
    if not gate_up.is_cuda:
        return torch_mixture_of_experts, {}
    if gate_up.dtype != torch.bfloat16 or any(size % 8 for size in experts.down.shape[1:]):
        return mixture_of_experts, {}
    x = torch.randn(tokens, gate_up.shape[2], dtype=gate_up.dtype, device=gate_up.device)
    chosen = torch.rand(tokens, gate_up.shape[0], device=x.device).topk(top_k).indices
    weights = torch.full((tokens, top_k), 1 / top_k, device=x.device)
    inputs = (x, experts, chosen, weights)
    seconds = {mixture_of_experts: _seconds(partial(mixture_of_experts, *inputs), x.device, repeats)}
    try:
        theirs = _seconds(partial(torch_mixture_of_experts, *inputs), x.device, repeats)
        seconds[torch_mixture_of_experts] = theirs
    except torch.AcceleratorError:
        raise  # the device's state is unknown
    except RuntimeError as error:  # PyTorch refuses this GPU, or has no memory for sorted rows: ours needs none
        log.info("mixtures of experts: PyTorch's grouped product is not used: %s", error)
    return min(seconds, key=lambda one: seconds[one]), {one.__name__: time for one, time in seconds.items()}


def _seconds(call: Callable[[], Tensor], device: torch.device, repeats: int) -> float:
    """Measure the mean seconds of a call, after a first one that warms up."""
    call()
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / repeats
