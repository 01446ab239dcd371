"""The feed-forward beside a mixture's experts that every token goes through (arXiv 2401.06066)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.feed_forward.mlp import MLP
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.spec import SharedExpertSpec


class SharedExpert(nn.Module):
    """A dense feed-forward, its result multiplied with the sigmoid of one more projection if the spec says so."""

    def __init__(
        self,
        spec: SharedExpertSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.layer, self.options = layer, options
        self.mlp = MLP(spec.mlp, hidden_size, layer, options, roles="shared_")
        hidden, number = unsharded(hidden_size, "hidden_size"), unsharded(1)
        self.gate = Linear(hidden, (number,), bias=False, options=options) if spec.gated else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x [T, hidden] to this rank's part of the result [T, hidden], which is not yet summed over ranks."""
        result = self.mlp.partial(x)
        return result if self.gate is None else self.gate(x).sigmoid() * result

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield from self.mlp.tensors()
        if self.gate is not None:
            yield from self.gate.tensors(self.options.names.of_layer("shared_expert_gate", self.layer))

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this module during a step."""
        hidden, size = self.mlp.gate_up.columns.size, self.options.dtype.itemsize
        return self.mlp.step_bytes() + 2 * hidden * size
