"""A mixture of experts whose experts have LoRA adapters: moe.py's products, and lora.py's beside them.

The experts of each adapter are adapters themselves to lora.py's kernels: the number of a routed row's is its token's
adapter times the number of experts, plus the expert. What adapters add stands before the activation, so that it is
PyTorch's here; sizes follow from T, k and the numbers of experts and adapters, and nothing waits for the device.

So gate and up are rounded to x's dtype before the activation for all rows of the step, those without an adapter too,
where moe.py's fused activation reads float32 sums. Other products round by the number of rows (moe.py's tiles, cuBLAS),
so that a token's bits depend on its company with or without adapters.
"""

from __future__ import annotations

import torch

from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.experts.moe import RoutedRows
from octavo_engine.kernels.lora import LoraWeights, add_lora, group_by_adapter


def mixture_with_adapters(
    x: torch.Tensor,
    experts: Experts,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate_up: LoraWeights,
    down: LoraWeights,
    adapter_of_token: torch.Tensor,
) -> torch.Tensor:
    """Compute `mixture_of_experts` with each token's adapter; `adapter_of_token` [T], -1: none.

    `gate_up` and `down` have as many adapters as there are adapters times experts. Scratch beside that of
    `mixture_of_experts`: T * k * (2 * hidden + 2 * intermediate) elements, and lora.py's.
    """
    if not len(x):
        return torch.empty_like(x)
    rows, top_k = RoutedRows(x, experts, chosen, weights), chosen.shape[1]
    flat = rows.chosen.view(-1)
    order = rows.groups.order.long().clamp(0, len(flat) - 1)  # undefined after the last row that an expert has
    expert, adapter = flat[order], adapter_of_token.long()[order // top_k]
    counted = torch.arange(len(flat), device=x.device) < ((flat >= 0) & (flat < rows.num_experts)).sum()
    own = torch.where(counted & (adapter >= 0), adapter * rows.num_experts + expert, -1)
    groups = group_by_adapter(own, len(gate_up.a))
    inner = rows.gate_up(activate=False)
    add_lora(inner, x[order // top_k], gate_up, groups)
    inner = experts.activate(inner)
    routed = rows.down(inner)
    added = torch.zeros(len(flat), x.shape[1], dtype=x.dtype, device=x.device)
    add_lora(added, inner * rows.weights.view(-1)[order, None].to(inner.dtype), down, groups)
    routed.view(len(flat), -1).index_add_(0, order, added)  # but for the zeros of undefined rows each row once
    return rows.total(routed)
