"""The parts that all mixers with states have in common: projections of input and output, and where the states are."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.attention.states import StateStep
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream


class RecurrentMixer(nn.Module, ABC):
    """A mixer that keeps one state of each sequence instead of its tokens.

    A subclass makes the linear layers `input` and `output`, and computes in `mix` what is between them.
    """

    input: Linear
    output: Linear

    def __init__(self, layer: int, options: LayerOptions) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    @property
    def input_scaling(self) -> Scaling | None:
        """How the layer's input has to be quantized; None: not at all."""
        return self.input.input_scaling

    def forward(
        self,
        x: Tensor | Quantized,
        residual: Tensor | None,
        rope: Rope | None,  # noqa: ARG002 (all mixers have the same arguments; these have no positions)
        context: StepContext,
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        state_tensors, step = context.state(self.layer)
        return self.output.add_to(residual, self.mix(self.input(x), state_tensors, step))

    @abstractmethod
    def mix(self, projected: Tensor, state_tensors: tuple[Tensor, ...], step: StateStep) -> Tensor:
        """Return the tokens' input of `output`, from what `input` has projected them to, [T, sum of its parts].

        `state_tensors` [slots, size] are all sequences' states, in the order of the KV group's specs; the mixer reads
        and writes the slots of this `step`.
        """
