"""Chooses the quickest way to compute a decoder on a device."""

from __future__ import annotations

import torch

from octavo_engine.kernels.cpu.features import cpu_features
from octavo_engine.kernels.cpu.library import DTYPES, LANES, CPUKernels, cpu_kernels
from octavo_engine.kernels.triton_support import triton_runs_on
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.experts_in_turn import ExpertsInTurn
from octavo_engine.model.layers.operations.fused import FusedLayers, kernels_know
from octavo_engine.model.layers.operations.measured_crossovers import measured_crossovers
from octavo_engine.model.layers.operations.paths import Path, choose_path
from octavo_engine.model.layers.operations.pointwise import CPUPointwise
from octavo_engine.model.layers.operations.products import (
    KernelQuantizedProduct,
    QuantizedVocabulary,
    by_tokens,
    kernel_gated_product,
    kernel_interleaving,
    kernel_logits,
    kernel_product,
    torch_product,
    wide_product,
)
from octavo_engine.model.layers.operations.run_layers import LayerRunner, one_by_one
from octavo_engine.model.spec import CompressedAttentionSpec, LatentAttentionSpec, ModelSpec
from octavo_engine.model.tensor_parallel.shard import UNSHARDED, Shard

_DEFAULT = Crossovers()


def choose_compute(spec: ModelSpec, dtype: torch.dtype, device: torch.device, shard: Shard = UNSHARDED) -> Compute:
    """Return the quickest way to compute a rank's part of the model of `spec` in `dtype` on `device`."""
    if triton_runs_on(device):
        from octavo_engine.model.layers.operations.triton_compute import triton_compute

        return triton_compute()
    if device.type != "cpu":  # `meta`: nothing is computed, so no kernels are compiled
        return Compute()
    # A router that all ranks have must round alike on each of them, or they choose different experts; and for each of
    # them a measurement may find other crossovers.
    return _cpu_compute(spec, dtype, shard, measures=shard.size == 1)


def planned_compute(spec: ModelSpec, dtype: torch.dtype, device: torch.device, shard: Shard = UNSHARDED) -> Compute:
    """Return what a memory plan has to know of `choose_compute`'s choice for `device`, which need not be present.

    On a CPU no crossovers are measured, since the bytes of a step do not depend on them. For any other device it is
    PyTorch's operations, which take no further bytes.
    """
    return _cpu_compute(spec, dtype, shard, measures=False) if device.type == "cpu" else Compute()


def _cpu_compute(spec: ModelSpec, dtype: torch.dtype, shard: Shard, *, measures: bool) -> Compute:
    """Return the quickest way on this CPU, with its own crossovers if it `measures`, or the usual ones."""
    features = cpu_features()
    kernels = cpu_kernels() if _in_full_lanes(spec, shard) and dtype in DTYPES else None
    path = choose_path(features, dtype, has_kernels=kernels is not None)
    quantized = spec.quantization is not None
    crossovers = (
        measured_crossovers(kernels, path, dtype, quantized=quantized) if measures else Crossovers.usual(features)
    )
    if kernels is None:
        return torch_compute(path, crossovers)
    known = shard.size == 1 and dtype == torch.bfloat16 and kernels_know(spec)
    return kernel_compute(kernels, path, spec if known else None, crossovers)


def _in_full_lanes(spec: ModelSpec, shard: Shard) -> bool:
    """Return True if all rows that the C kernels read consist of full vectors."""
    parts = [part for layer in spec.layers for part in layer.feed_forwards]
    widths = {spec.hidden_size, *(len(shard.intermediate(part.intermediate_size)) for part in parts)}
    for mixer in spec.attention_mixers:
        if isinstance(mixer, LatentAttentionSpec):
            widths |= {mixer.query_rank or 0, mixer.latent, len(shard.heads(mixer)) * mixer.value_dim}
        if isinstance(mixer, CompressedAttentionSpec):
            widths |= {mixer.query_rank, len(shard.kv_heads(mixer)) * mixer.output_rank}
    heads = {mixer.head_dim for mixer in spec.attention_mixers}
    return not any(width % LANES for width in widths) and not any(size % (2 * LANES) for size in heads)


def torch_compute(path: Path = "torch", crossovers: Crossovers = _DEFAULT) -> Compute:
    """Return the operations by PyTorch alone, for the paths that need no kernels."""
    if path == "torch":
        return Compute()
    product = by_tokens(torch_product, crossovers.narrow, wide_product)
    return Compute(product=product, experts=ExpertsInTurn(product), widens=True)


def kernel_compute(
    kernels: CPUKernels,
    path: Path = "kernels",
    fused: ModelSpec | None = None,
    crossovers: Crossovers = _DEFAULT,
) -> Compute:
    """Return the operations by the C kernels, for the paths that begin with "kernels".

    `fused` is a spec whose layers are computed in one call; None: layer by layer.
    """
    product, most_tokens = kernel_product(kernels), None
    if path == "kernels and float32":
        most_tokens = crossovers.kernels
        product = by_tokens(product, most_tokens, wide_product)
    quantized_product = KernelQuantizedProduct(kernels, crossovers, product)
    runner: LayerRunner = one_by_one
    if fused is not None and fused.norm is not None:
        runner = FusedLayers(kernels, fused.norm.eps, fused.attention_mixers[0].scale, crossovers, most_tokens)
    return Compute(
        product=product,
        gated_product=kernel_gated_product(kernels, most_tokens),
        logits_product=kernel_logits(kernels),
        quantized_product=quantized_product,
        quantized_vocabulary=QuantizedVocabulary(kernels),
        pointwise=CPUPointwise(kernels),
        experts=ExpertsInTurn(product, quantized_product),
        runner=runner,
        interleave=kernel_interleaving(kernels),
        widens=path == "kernels and float32",
    )
