"""Attention and a state space model of the same input, whose results are added (Falcon-H1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.model.layers.attention.grouped_query_attention import Attention
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.recurrent.mamba2 import Mamba2
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum, summed
from octavo_engine.model.spec import ParallelMixersSpec


class ParallelMixers(nn.Module):
    """Both mixers, whose inputs and results are multiplied with factors."""

    def __init__(
        self,
        spec: ParallelMixersSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.spec, self.hidden_size, self.options = spec, hidden_size, options
        self.attention = Attention(spec.attention, hidden_size, layer, options)
        self.state_mixer = Mamba2(spec.state_mixer, hidden_size, layer, options)

    @property
    def input_scaling(self) -> Scaling | None:
        """Return None: the input is not quantized, since each mixer scales it first."""
        return None

    def forward(
        self,
        x: Tensor | Quantized,
        residual: Tensor | None,
        rope: Rope | None,
        context: StepContext,
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden]; the next norm adds the result to `residual`."""
        values = cast("Tensor", x)  # as `input_scaling` says
        inputs = [values * scale for scale in self.spec.input_scales]
        attended = summed(self.attention(inputs[0], None, rope, context)) * self.spec.output_scales[0]
        product = attended + summed(self.state_mixer(inputs[1], None, None, context)) * self.spec.output_scales[1]
        return product if residual is None else ResidualSum(product, residual)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield from self.attention.tensors()
        yield from self.state_mixer.tensors()

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        own = 5 * self.hidden_size * self.options.dtype.itemsize
        return own + max(self.attention.step_bytes(), self.state_mixer.step_bytes())

    def sequence_bytes(self) -> int:
        """Return an upper bound of what one sequence takes in it besides its tokens."""
        return self.state_mixer.sequence_bytes()
