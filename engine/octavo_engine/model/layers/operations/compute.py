"""The operations that layers are made of. Layers call `Compute`; choose_compute.py builds it for a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor

from octavo_engine.attention.context import StepContext
from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.model.layers.adapters.expert_lora import ExpertAdapters
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.operations.causal_conv import Convolution, torch_convolution
from octavo_engine.model.layers.operations.delta_rule import DeltaRule, gated_delta_rule
from octavo_engine.model.layers.operations.experts_in_turn import ExpertMixture, ExpertsInTurn
from octavo_engine.model.layers.operations.pointwise import Pointwise, TorchPointwise
from octavo_engine.model.layers.operations.products import (
    GatedProduct,
    LogitsProduct,
    Product,
    QuantizedProduct,
    QuantizedVocabulary,
    torch_logits,
    torch_product,
)
from octavo_engine.model.layers.operations.run_layers import Layer, LayerRunner, Ropes, one_by_one
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.act_order import sort_columns
from octavo_engine.model.quantization.linear_method import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """One way to compute a decoder: a part for each kind of operation. The defaults are PyTorch's, on any device."""

    product: Product = torch_product
    gated_product: GatedProduct | None = None
    """None: gate and up are multiplied by `product`, then gated by `pointwise`."""
    logits_product: LogitsProduct = torch_logits
    logits_dtype: torch.dtype | None = torch.float32
    """The type in which logits are sampled; None: the model's type, in which they are multiplied."""
    quantized_product: QuantizedProduct | None = None
    """Multiplies weights of 4 or 8 bits without dequantizing them; None: their linear method dequantizes them."""
    quantized_vocabulary: QuantizedVocabulary | None = None
    """Computes with embeddings and heads of 4 or 8 bits without dequantizing them. None: embeddings, heads and experts
    are dequantized while they are loaded."""
    pointwise: Pointwise = field(default_factory=TorchPointwise)
    experts: ExpertMixture = field(default_factory=partial(ExpertsInTurn, torch_product))
    convolution: Convolution = torch_convolution
    delta_rule: DeltaRule = gated_delta_rule
    runner: LayerRunner = one_by_one
    interleave: Callable[[QuantizedWeight, torch.dtype], None] | None = None
    """Reorders codes and scales of a weight, if it can be, into the order with which `quantized_product` is quickest
    for inputs of this type."""
    widens: bool = False
    """Whether products of many tokens are computed in float32, from widened copies of weight and input."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """Return x [T, in] weight [out, in]^T + bias [out] + addend [T, out]; the addend may be overwritten."""
        return self.product(x, weight, bias, addend)

    def quantized(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, addend: Tensor | None
    ) -> Tensor | None:
        """Return x [T, in] weight [out, in]^T + bias [out] + addend [T, out]; None if such codes are not supported."""
        product = self.quantized_product if self.knows_codes(weight, x.dtype) else None
        if product is None:
            return None
        if weight.column_order is not None:
            x = x.index_select(1, weight.column_order)
        return product(x, weight, bias, addend)

    def knows_codes(self, weight: QuantizedWeight, dtype: torch.dtype) -> bool:
        """Return True if inputs of this type are multiplied with such codes as they are."""
        return self.quantized_product is not None and self.quantized_product.knows(weight, dtype)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """Return act(gate) * up [T, inner], where [gate up] is x times the two halves of weight [2 * inner, in]."""
        fused = None if self.gated_product is None else self.gated_product(x, weight, bias, activation)
        return self.gate(self.product(x, weight, bias, None), activation) if fused is None else fused

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """Return act(gate) * up [T, inner] for [gate up] [T, 2 * inner]."""
        return cast("Tensor", self.pointwise.gate(gate_up, activation, None))

    def gate_for(self, gate_up: Tensor, activation: str, scaling: Scaling | None) -> Tensor | Quantized:
        """Return `gate`'s result, quantized by `scaling` for the next linear, or left to the linear to quantize."""
        return self.pointwise.gate(gate_up, activation, scaling)

    def activate(self, x: Tensor, activation: str) -> Tensor:
        """Apply the activation function to x [T, inner], for feed-forwards without a gate."""
        return ACTIVATIONS[activation](x)

    def logits(
        self,
        x: Tensor,
        weight: Tensor | QuantizedWeight,
        out: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> Tensor:
        """Return x [T, in] weight [vocabulary, in]^T + bias [vocabulary] in `logits_dtype`, in `out` if it is given.

        Logits are multiplied by `scale`, then with a softcap become softcap * tanh(logits / softcap) (Gemma 2).
        """
        if isinstance(weight, QuantizedWeight):
            logits = cast("QuantizedVocabulary", self.quantized_vocabulary).logits(x, weight, out)
        else:
            logits = self.logits_product(x, weight, out)
        if bias is not None:
            logits.add_(bias)
        if scale != 1:
            logits.mul_(scale)
        return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)

    def norm(
        self, stream: ResidualStream, norm: NormWeights, scaling: Scaling | None = None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return the stream [T, hidden] normalised, and quantized by `scaling` if the next linear wants that; and the
        stream itself as one tensor."""
        return self.pointwise.norm(stream, norm, scaling)

    def mixture(
        self, x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor, adapters: ExpertAdapters | None = None
    ) -> Tensor:
        """Return the weighted sum of each token's experts, [T, hidden], of x [T, hidden]; `chosen` experts and their
        `weights` are the router's, [T, k]."""
        return self.experts(x, experts, chosen, weights, adapters)

    def prepare(self, linears: Sequence[Weights], others: Iterable[QuantizedWeight] = ()) -> None:
        """Reorder the loaded weights of all linears, and of `others` whose codes are multiplied."""
        for each in linears:
            sort_columns(each, self.knows_codes)
        dtypes = {each.dtype for each in linears}
        if self.interleave is None or len(dtypes) != 1:
            return
        (dtype,) = dtypes
        for quantized in (*(each.quantized for each in linears), *others):
            if quantized is not None:
                self.interleave(quantized, dtype)

    def prepare_mixture(self, experts: Experts, top_k: int) -> None:
        """Prepare all layers' experts, which have the shapes of these; each token goes through `top_k` of them."""
        self.experts.prepare(experts, top_k)

    def run(self, layers: Sequence[Layer], x: Tensor, ropes: Ropes, context: StepContext) -> Tensor:
        """Run x [T, hidden], which may be overwritten, through all layers; `ropes` has one element for each layer."""
        return self.runner(layers, x, ropes, context)
