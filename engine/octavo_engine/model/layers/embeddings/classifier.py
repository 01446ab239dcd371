"""The classification head: computes the logits of a text's classes from the text's vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.spec import ClassifierSpec


class Classifier(nn.Module):
    """A classification head; every rank computes all of it, since there are few classes."""

    def __init__(self, spec: ClassifierSpec, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        options = replace(
            options, names=replace(options.names, transposed=False)
        )  # GPT-2 transposes only layers' weights
        self.spec, self.options, hidden = spec, options, unsharded(hidden_size)
        transform = spec.transform
        self.dense = None if transform is None else Linear(hidden, (hidden,), bias=transform.bias, options=options)
        norm = None if transform is None else transform.norm
        self.norm = None if norm is None else Norm(hidden_size, norm, options)
        self.classes = Linear(hidden, (unsharded(len(spec.labels)),), bias=spec.bias, options=options)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [R, classes] of vectors [R, hidden]."""
        return cast("Tensor", self.classes(x if self.spec.transforms_tokens else self.transformed(x)))

    def transformed(self, x: Tensor) -> Tensor:
        """Return [R, hidden] after the linear, the activation and the norm, of which the head may lack some."""
        if self.dense is not None and self.spec.transform is not None:
            x = self.options.compute.activate(self.dense(x), self.spec.transform.activation)
        if self.norm is not None:
            x = cast("Tensor", self.norm(x)[0])
        return x

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        if self.dense is not None:
            yield from self.dense.tensors(names.classifier_dense)
        if self.norm is not None:
            yield from self.norm.tensors(names.classifier_norm)
        yield from self.classes.tensors(names.classifier)
