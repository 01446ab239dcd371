"""The mixture of experts in place of a layer's dense feed-forward (arXiv 1701.06538)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import (
    CheckpointTensor,
    Piece,
    Rows,
    Span,
    plain,
    transposed,
    unsharded,
    vector_of_first_rank,
)
from octavo_engine.model.layers.adapters.expert_lora import ExpertAdapters, ExpertLora
from octavo_engine.model.layers.experts.latent_router import LatentRouter
from octavo_engine.model.layers.experts.quantized_experts import ExpertShape, QuantizedPair, kept_experts
from octavo_engine.model.layers.experts.router import choose
from octavo_engine.model.layers.experts.shared_expert import SharedExpert
from octavo_engine.model.layers.experts.stored_experts import StoredExperts
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.operations.experts_in_turn import ROWS_TOGETHER
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum
from octavo_engine.model.quantization.mxfp4 import MXFP4
from octavo_engine.model.quantization.unquantized import UNQUANTIZED, parameter
from octavo_engine.model.spec import MoESpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_BRANCH_NORMS = ("before_shared", "after_shared", "before_experts", "after_experts")
_CHOICE_BYTES = 128
"""The bytes for one chosen expert of one token: its index and weight, and the order of rows by expert (int64)."""


class MoE(nn.Module):
    """A mixture of experts: the weighted sum of the results of the experts that a router chooses for each token.

    Each rank has a part of every expert's intermediate size. Memory is not initialised; the loader fills it.
    """

    def __init__(self, spec: MoESpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        self.hidden = unsharded(hidden_size, "hidden_size")
        size, shard, count = spec.intermediate_size, options.ranks.shard, spec.num_experts
        self.inner = span(shard.intermediate(size, self._alignment()), size, "intermediate_size")
        ranked = count + spec.zero_experts
        latent = spec.router.latent
        self.router: Linear | LatentRouter = (
            Linear(self.hidden, (unsharded(ranked),), bias=spec.router.bias, options=options)
            if latent is None
            else LatentRouter(latent, self.hidden, ranked, options)
        )
        corrected = spec.router.correction_bias
        self.correction = parameter(ranked, dtype=torch.float32, device=options.device) if corrected else None
        tokens = spec.router.table
        self.table = None if tokens is None else parameter(tokens, spec.top_k, dtype=torch.int32, device=options.device)
        """The experts of each token id, [vocabulary, top_k], in models whose router reads a table."""
        self.router_norm = (
            None if spec.router.input_norm is None else Norm(hidden_size, spec.router.input_norm, options)
        )
        self.expert_scales = self._memory(count) if spec.router.expert_scales else None
        self.branch_norms = nn.ModuleDict(
            {}
            if spec.branch_norm is None
            else {role: Norm(hidden_size, spec.branch_norm, options) for role in _BRANCH_NORMS}
        )
        self.shared = None if spec.shared is None else SharedExpert(spec.shared, hidden_size, layer, options)
        self.latent_in, self.latent_out = self._latents(self.hidden, options)
        self.width = self.hidden if spec.latent is None else unsharded(spec.latent, "moe_latent_size")
        self._allocate_weights()
        with_output_bias = spec.output_bias and shard.rank == 0
        self.output_bias = self._memory(hidden_size) if with_output_bias else None
        self.experts = self._experts()
        self.lora: ExpertLora | None = None
        """The LoRA adapters of the experts, if adapters are served."""

    def _allocate_weights(self) -> None:
        """Make the memory of the experts' weights: as codes, in MXFP4, or in the model's dtype."""
        count, device = self.spec.num_experts, self.options.device
        shapes = [(count, *shape) for shape in self.weight_shapes]
        self.gate_up_scales = self.down_scales = None
        self.quantized = self._quantized()
        self.quantized_parts = nn.ModuleList(self.quantized or ())  # registers their parameters
        if self.quantized is not None:
            self.gate_up, self.down = (each.weights.weight for each in self.quantized)
        elif (method := self._kept_as_stored()) is None:
            self.gate_up, self.down = (self._memory(*shape) for shape in shapes)
        else:
            (self.gate_up, self.gate_up_scales), (self.down, self.down_scales) = (
                [parameter(count, rows, size, dtype=torch.uint8, device=device) for size in method.bytes(columns)]
                for count, rows, columns in shapes
            )
        with_down_bias = self.spec.bias and self.options.ranks.shard.rank == 0
        self.gate_up_bias = self._memory(count, shapes[0][1]) if self.spec.bias else None
        self.down_bias = self._memory(count, self.width.size) if with_down_bias else None

    def _memory(self, *shape: int) -> nn.Parameter:
        """Return a parameter in the model's dtype."""
        return parameter(*shape, dtype=self.options.dtype, device=self.options.device)

    def _experts(self) -> Experts:
        """Return the experts' weights and what happens between them, for kernels."""
        spec = self.spec
        return Experts(
            self.gate_up,
            self.down,
            self.gate_up_bias,
            self.down_bias,
            limit=spec.limit,
            alpha=spec.alpha,
            up_offset=spec.up_offset,
            activation=None if self._only_silu else ACTIVATIONS[spec.activation],
            activated_limit=spec.activated_limit,
            gated=spec.gated,
            gate_up_scales=self.gate_up_scales,
            down_scales=self.down_scales,
            quantized=None if self.quantized is None else (self.quantized[0].codes, self.quantized[1].codes),
        )

    def _kept_as_stored(self) -> MXFP4 | None:
        """Return MXFP4 if experts stay in it, because our kernels multiply it; None: they are in the model's dtype."""
        known = self.spec.gated and self._only_silu
        return self.spec.quantization if known and self.options.support.triton_experts else None

    @property
    def _only_silu(self) -> bool:
        """Whether gates are activated by SiLU and not changed after that."""
        return self.spec.activation in {"silu", "swish"} and self.spec.activated_limit is None

    def _quantized(self) -> QuantizedPair | None:
        """Return the memory of experts that stay in 4 or 8 bits; None: experts are dequantized."""
        *gate_up, down = self._expert_names()
        first = ExpertShape((self.inner,) * len(gate_up), self.width)
        return kept_experts(
            self.spec.num_experts,
            (gate_up, first),
            ([down], ExpertShape((self.width,), self.inner)),
            self.options,
            plain=self.spec.gated and self._only_silu,
        )

    def dequantized_from(self) -> set[str]:
        """Return the schemes in which the checkpoint has experts that were dequantized while they were loaded."""
        if self.quantized is not None or self.gate_up_scales is not None:
            return set()
        if self.spec.quantization is not None:
            return {self.spec.quantization.name}
        if "{expert}" not in self._expert_names()[-1]:  # tensors of all experts are in floating point
            return set()
        methods = map(self.options.stored_by, self._names_of_all())
        return {method.name for method in methods if method is not UNQUANTIZED}

    def _alignment(self, *, needed: bool = False) -> int:
        """Return the multiple in which ranks should divide the experts' intermediate size, or the `needed` one."""
        if self.spec.quantization is not None:
            return self.spec.quantization.alignment
        return self.options.alignment(*self._names_of_all(), needed=needed)

    def _expert_names(self) -> tuple[str, ...]:
        """Return the names of gate (where experts have one), up and down, with `{expert}` still to be filled in."""
        roles = ("expert_gate", "expert_up", "expert_down")
        return tuple(self.options.names.of_layer(role, self.layer) for role in roles[not self.spec.gated :])

    def _names_of_all(self) -> Iterator[str]:
        """Yield the names of all experts' projections, which a checkpoint may store in different ways."""
        names = self._expert_names()
        experts = range(self.spec.num_experts) if "{expert}" in names[-1] else range(1)
        return (name.replace("{expert}", str(each)) for each in experts for name in names)

    def _latents(self, hidden: Span, options: LayerOptions) -> tuple[Linear | None, Linear | None]:
        """Return the projections to the experts' input and from their output, which all ranks have in full. As the
        second is linear, each rank projects its part of the experts' sum."""
        if self.spec.latent is None:
            return None, None
        latent, bias = unsharded(self.spec.latent, "moe_latent_size"), self.spec.latent_bias
        projections = (hidden, latent, False), (latent, hidden, True)
        first, last = (
            Linear(columns, (rows,), bias=bias, options=options, summed=summed) for columns, rows, summed in projections
        )
        return first, last

    @property
    def interleaves(self) -> bool:
        """Whether rows of gate and up alternate in the tensor that holds all experts."""
        return self.options.names.expert_layout == "interleaved columns"

    @property
    def input_scaling(self) -> Scaling | None:
        """How the layer's input has to be quantized: as the router's."""
        return self.router.input_scaling

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, context: StepContext | None = None
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden]; the next norm adds the result to `residual`. In `context`, a router with
        a table of experts finds the token ids to read it by, and one with a latent that of the layer before."""
        values = cast("Tensor", x)  # as `input_scaling` says
        token_ids = None if context is None else context.token_ids
        given = None if self.table is None or token_ids is None else self.table[token_ids].long()
        latents = [] if context is None else context.router_latents
        chosen, weights = choose(
            self._logits(values, latents), self.spec.router, self.spec.top_k, self.correction, given
        )
        if self.expert_scales is not None:
            weights = weights * self.expert_scales[chosen]
        if self.branch_norms:
            product = self._branches(values, chosen, weights)
            return product if residual is None else ResidualSum(product, residual)
        mixture = self._mixture(values if self.latent_in is None else self.latent_in(values), chosen, weights)
        if self.latent_out is not None:
            mixture = self.latent_out(mixture)
        if self.shared is not None:
            mixture = mixture + self.shared(values)
        if self.output_bias is not None:
            mixture = mixture + self.output_bias
        if self.spec.scale != 1:
            mixture = mixture * self.spec.scale
        product = self.options.ranks.all_reduce(mixture)
        return product if residual is None else ResidualSum(product, residual)

    def _branches(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the experts and the shared expert of x [T, hidden], each normalised before and after."""
        all_reduce = self.options.ranks.all_reduce

        def normed(role: str, values: Tensor) -> Tensor:
            return cast("Tensor", self.branch_norms[role](values)[0])

        mixture = all_reduce(self._mixture(normed("before_experts", x), chosen, weights))
        product = normed("after_experts", mixture)
        if self.shared is not None:
            product = normed("after_shared", all_reduce(self.shared(normed("before_shared", x)))) + product
        return product

    def _logits(self, x: Tensor, latents: list[Tensor]) -> Tensor:
        """Return the router's logits [T, experts]; `latents` as in `LatentRouter`."""
        if isinstance(self.router, LatentRouter):
            return cast("Tensor", self.router(x, latents))
        if self.router_norm is not None:
            x = cast("Tensor", self.router_norm(x)[0]) * self.spec.router.input_scale
        if self.spec.router.in_float32 and x.dtype != torch.float32:
            bias, lora = None if self.router.bias is None else self.router.bias.float(), self.router.lora
            scores = nn.functional.linear(x.float(), self.router.weight.float(), bias)
            return scores if lora is None else scores + lora.add_to(x.new_zeros(scores.shape), x)
        logits: Tensor = self.router(x)
        return logits

    def _mixture(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return this rank's part of each token's sum of experts, [T, hidden]."""
        if self.spec.zero_experts:
            return self._beside_zero_experts(x, chosen, weights)
        mixture, adapters = self.options.compute.mixture, self._adapters()
        if not self.spec.weighs_inputs:
            return mixture(x, self.experts, chosen, weights, adapters)
        rows = (x[:, None] * weights[..., None].to(x.dtype)).flatten(0, 1)  # each token once for each of its experts
        single = chosen.reshape(-1, 1)
        repeated = None if adapters is None else adapters.repeated(chosen.shape[1])
        parts = mixture(rows, self.experts, single, torch.ones_like(single, dtype=torch.float32), repeated)
        return parts.view(*chosen.shape, -1).sum(dim=1)

    def _adapters(self) -> ExpertAdapters | None:
        return None if self.lora is None else self.lora.of_step()

    def _beside_zero_experts(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the mixture's result with zero experts, which return their input or zeros; the first rank adds it."""
        zero = chosen >= self.spec.num_experts
        others = chosen.masked_fill(zero, 0), weights.masked_fill(zero, 0)
        mixture = self.options.compute.mixture(x, self.experts, *others, self._adapters())
        if self.spec.skipped:
            return mixture
        share = weights.masked_fill(~zero, 0).sum(dim=-1, keepdim=True).to(x.dtype)
        return mixture if self.options.ranks.on_first_rank(x) is None else mixture + share * x

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer = self.options.names, self.layer
        yield from self._router_tensors()
        for role, norm in self.branch_norms.items():
            yield from cast("Norm", norm).tensors(names.of_layer(role, layer))
        if self.spec.output_bias:
            yield vector_of_first_rank(names.of_layer("experts_bias", layer), self.output_bias, self.hidden)
        if self.shared is not None:
            yield from self.shared.tensors()
        if self.latent_in is not None and self.latent_out is not None:
            yield from self.latent_in.tensors(names.of_layer("latent_in", layer))
            yield from self.latent_out.tensors(names.of_layer("latent_out", layer))
        gate, up, down = (names.of_layer(f"expert_{role}", layer) for role in ("gate", "up", "down"))
        stored = StoredExperts(
            self.spec, self.options, self.experts, self.quantized, self.hidden, self.width, self.inner
        )
        yield from stored.tensors(gate, up, down)

    def _router_tensors(self) -> Iterator[CheckpointTensor]:
        names, layer = self.options.names, self.layer
        for tensor in self.router.tensors(names.of_layer("router", layer)):
            yield transposed(tensor) if names.router_of_two_sets else tensor
        if self.correction is not None:
            name, experts = names.of_layer("correction_bias", layer), unsharded(len(self.correction))
            if names.router_of_two_sets:
                yield plain(name, self.correction.unsqueeze(0), Span(0, 1, 2), experts)
            else:
                yield replace(plain(name, self.correction, experts), squeezed=True)
        if self.table is not None:
            yield self._table_tensor(names.of_layer("expert_table", layer), self.table)
        if self.router_norm is not None:
            yield plain(names.of_layer("router_scale", layer), self.router_norm.weight, self.hidden)
        if self.expert_scales is not None:
            yield plain(names.of_layer("expert_scales", layer), self.expert_scales, unsharded(len(self.expert_scales)))

    def _table_tensor(self, name: str, table: Tensor) -> CheckpointTensor:
        """Return the tensor of the table of tokens' experts, in whole numbers, whose values are checked."""

        def fill(target: Tensor, rows: Rows, values: Tensor) -> None:
            if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < self.spec.num_experts:
                raise ValueError(
                    f"names experts {int(values.min())} to {int(values.max())}, and there are 0 to "
                    f"{self.spec.num_experts - 1}"
                )
            target[rows] = values.to(target.device, target.dtype)

        piece = Piece(table, fill=fill)
        return CheckpointTensor(name=name, shape=tuple(table.shape), pieces=(piece,), types=("I64", "I32"))

    @property
    def weight_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of one expert's two weights."""
        rows = self.inner.size * (2 if self.spec.gated else 1)
        return (rows, self.width.size), (self.width.size, self.inner.size)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of one expert's dequantized weight, if it has codes, and of its rows, if experts run in turn.

        The latter are the rows' input, both products, the activation between them, and float32 results in two orders,
        beside the results of the rows before.
        """
        if not self.options.support.experts_in_turn:
            return 0
        size = self.options.dtype.itemsize
        dequantized = (
            0 if self.quantized is None else max(rows * columns for rows, columns in self.weight_shapes) * size
        )
        hidden, inner = self.hidden.size, self.inner.size
        return dequantized + ROWS_TOGETHER * ((4 * hidden + 8 * inner) * size + 2 * hidden * _FLOAT32_BYTES)

    def misaligned(self) -> Iterator[tuple[Span, int]]:
        """Yield the dimensions whose sizes experts cannot have, each with the number it must be a multiple of."""
        alignment = self._alignment(needed=True)
        yield from ((span, alignment) for span in (self.inner, self.width) if span.size % alignment)

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer, by the kernels in kernels/experts/ or by PyTorch.

        It counts rows by expert: input, both products, the activation between them, and float32 results in two orders.
        One expert after another has only a few rows for itself, which `scratch_bytes` counts.
        """
        hidden, inner, size = self.hidden.size, self.inner.size, self.options.dtype.itemsize
        zero = self.spec.zero_experts
        routed = self.spec.top_k * ((2 * hidden + 7 * inner) * size + 3 * hidden * _FLOAT32_BYTES)
        if self.options.support.experts_in_turn:  # where each choice has an input, there is a sum for each choice
            routed = self.spec.top_k * hidden * (2 * size + _FLOAT32_BYTES) * self.spec.weighs_inputs
        router = (self.spec.num_experts + zero) * (size + 6 * _FLOAT32_BYTES) + self.spec.top_k * _CHOICE_BYTES
        router += (3 * hidden * size + 2 * self.spec.top_k * _CHOICE_BYTES) * (zero > 0)
        router += self.router.step_bytes() if isinstance(self.router, LatentRouter) else 0
        weighted = 2 * self.spec.top_k * hidden * size if self.spec.weighs_inputs else 0
        shared = 0 if self.shared is None else self.shared.step_bytes()
        latents = 0 if self.spec.latent is None else 3 * (hidden + self.spec.latent) * size
        norms = self.spec.branch_norm is not None or self.router_norm is not None
        apart = (6 * size + 3 * _FLOAT32_BYTES) * hidden * norms
        return apart + hidden * (2 * size + _FLOAT32_BYTES) + routed + router + weighted + shared + latents
