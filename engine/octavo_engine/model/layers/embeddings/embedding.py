"""The layers before and after the decoder layers: embeddings of tokens and positions, and the head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.model.checkpoint.tensors import (
    CheckpointTensor,
    Piece,
    Rows,
    check_finite,
    ignored,
    plain,
    transposed,
    unsharded,
    with_unit_rows,
)
from octavo_engine.model.layers.affine import Affine
from octavo_engine.model.layers.embeddings.positions import PositionTable
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.operations.products import QuantizedVocabulary
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.dequantized import check_ends, dequantized_tensors
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Projection, Weights
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import HeadSpec, HeadTransformSpec, ModelSpec
from octavo_engine.model.tensor_parallel.shard import span


class VocabularyWeight(nn.Module):
    """A weight with one row for each token of this rank's part of the vocabulary.

    All ranks have the same number of rows; where ranks do not divide the vocabulary, the last ranks use fewer of them.
    Codes of 4 or 8 bits stay in memory where the device computes with them.
    """

    def __init__(
        self,
        name: str,
        vocab_size: int,
        hidden_size: int,
        options: LayerOptions,
        shared: VocabularyWeight | None = None,
        unread: int = 0,
    ) -> None:
        """Create memory for the checkpoint's tensor `name`, or use the memory of `shared` (a tied head).

        `unread`: the stored tensor's rows after the vocabulary's.
        """
        super().__init__()
        self.name, self.options, self.columns = name, options, unsharded(hidden_size, "hidden_size")
        self.unread = unread
        shard = options.ranks.shard
        self.tokens = span(shard.vocabulary(vocab_size), vocab_size)
        self.method: LinearMethod
        self.weights: Weights
        if shared is None:
            shape = LinearShape((-(-vocab_size // shard.size),), self.columns)
            self.method, self.weights = options.vocabulary(name, shape)
        else:
            self.method, self.weights = shared.method, shared.weights
        self.stored_parts = nn.ParameterDict(self.weights.parameters)
        """The weight's tensors, registered so that they count among the module's parameters."""
        self.weight = self.weights.weight

    @property
    def quantized(self) -> QuantizedWeight | None:
        """The weight if its codes are kept; None: the weight is in the dtype of the products."""
        return self.weights.quantized

    def stored(self) -> Iterator[CheckpointTensor]:
        """Yield the weight's tensors in a checkpoint."""
        name, method = self.name, self.method
        own = replace(self.tokens, total=self.tokens.total + self.unread)
        if self.quantized is None:
            yield from dequantized_tensors(method, name, self.weight[: own.size], own, self.columns)
            return
        check_ends(own, method.row_alignment)
        projection = Projection(name, slice(0, own.size), own, self.columns, has_bias=False)
        for tensor in method.tensors(self.weights, projection):
            yield transposed(tensor) if tensor.as_columns else tensor


class Input(nn.Module):
    """The input of the first layer: the tokens' vectors plus those of their positions.

    Vectors are projected to the hidden size and normalised where the spec says so.
    """

    def __init__(self, spec: ModelSpec, options: LayerOptions) -> None:
        super().__init__()
        self.names, self.projected_last = options.names, spec.projected_last
        size = spec.embedding_size or spec.hidden_size
        scale, unread = spec.embedding_scale, spec.unread_embeddings
        self.tokens = Embedding(self.names.embedding, spec.vocab_size, size, scale, options, unread)
        self.projection = (
            Linear(unsharded(size), (unsharded(spec.hidden_size),), bias=True, options=options)
            if spec.projected_last
            else projection(size, spec.hidden_size, options)
        )
        added = size if spec.projected_last else spec.hidden_size
        self.affine = Affine(spec.hidden_size, options) if spec.affine_embeddings else None
        self.positions = None if spec.positions is None else PositionTable(spec, added, options)
        types = spec.token_types
        self.types = parameter(types, added, dtype=options.dtype, device=options.device) if types else None
        """[rows, added]: the vectors added to tokens of the first text and of the second (token types)."""
        self.task_kinds = spec.task_kinds
        self.norm = None if spec.embedding_norm is None else Norm(added, spec.embedding_norm, options)

    def forward(self, token_ids: Tensor, positions: Tensor, second_text: Tensor | None = None) -> Tensor:
        """Map token ids [T] and positions [T] to [T, hidden]. `second_text` [T]: True for a pair's second text."""
        x: Tensor = self.tokens(token_ids)
        if self.projection is not None and not self.projected_last:
            x = self.projection(x)
        if self.affine is not None:
            x = self.affine(x)
        if self.positions is not None and not self.positions.spec.after_norm:
            x = x + self.positions(positions, token_ids)
        if self.types is not None:
            pair = second_text is not None and len(self.types) > 1
            x = x + (self.types[cast("Tensor", second_text).long()] if pair else self.types[0])
        if self.norm is not None:
            x = self.norm(x)[0]
        if self.positions is not None and self.positions.spec.after_norm:
            x = x + self.positions(positions, token_ids)
        return self.projection(x) if self.projection is not None and self.projected_last else x

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield from self.tokens.stored()
        if self.projection is not None:
            yield from self.projection.tensors(self.names.embedding_in)
        if self.affine is not None:
            yield from self.affine.tensors(self.names.affine_embedding)
        if self.positions is not None:
            yield from self.positions.tensors(self.names.positions)
        if self.types is not None:
            yield plain(f"{self.names.text_kinds}.weight", self.types, unsharded(len(self.types)))
            if self.task_kinds:
                yield self._task_tensor(f"{self.names.task_kinds}.weight", self.types)
        if self.norm is not None:
            yield from self.norm.tensors(self.names.embedding_norm)

    def _task_tensor(self, name: str, types: Tensor) -> CheckpointTensor:
        """Return the table of kinds of tasks, whose first row is added to the vectors of all token types."""

        def add(target: Tensor, rows: Rows, values: Tensor) -> None:
            target[rows] += values.to(target.device, target.dtype)
            check_finite(target[rows], values)

        pieces = tuple(Piece(row[None], (slice(0, 1), slice(0, types.shape[1])), add) for row in types)
        return CheckpointTensor(name=name, shape=(self.task_kinds, types.shape[1]), pieces=pieces, late=True)


def projection(columns: int, rows: int, options: LayerOptions) -> Linear | None:
    """Return the unsharded linear between token vectors and hidden states; None where both have the same size."""
    return None if columns == rows else Linear(unsharded(columns), (unsharded(rows),), bias=False, options=options)


class Embedding(VocabularyWeight):
    """Token ids to vectors, times a scale."""

    def __init__(
        self, name: str, vocab_size: int, hidden_size: int, scale: float, options: LayerOptions, unread: int = 0
    ) -> None:
        super().__init__(name, vocab_size, hidden_size, options, unread=unread)
        self.scale = scale
        self._rounded_scale = torch.tensor(scale, dtype=options.dtype, device="cpu").item()
        """The scale rounded to the model's type, as in transformers: Gemma's 55.43 is 55.5 in bfloat16."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """Map token ids [T] to [T, hidden]."""
        hidden = self.options.ranks.all_reduce(self._own(token_ids))
        return hidden if self.scale == 1 else hidden.mul_(self._rounded_scale)

    def _own(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [T, hidden] of the tokens in this rank's part of the vocabulary, zeros for others."""
        if self.quantized is not None:
            kept = cast("QuantizedVocabulary", self.options.compute.quantized_vocabulary)
            return kept.embeddings(token_ids - self.tokens.start, self.quantized, self.options.dtype)
        if self.options.ranks.alone:
            return F.embedding(token_ids, self.weight)
        places = token_ids - self.tokens.start
        elsewhere = (places < 0) | (places >= len(self.weight))
        found = F.embedding(places.masked_fill(elsewhere, 0), self.weight)
        return found.masked_fill_(elsewhere.unsqueeze(1), 0)


class HeadTransform(nn.Module):
    """The transformation of the last hidden states before the head. Every rank computes all of it."""

    def __init__(self, spec: HeadTransformSpec, hidden_size: int, size: int, options: LayerOptions) -> None:
        """`size` is that of its result."""
        super().__init__()
        self.spec, self.options = spec, options
        self.dense = Linear(unsharded(hidden_size), (unsharded(size),), bias=spec.bias, options=options)
        self.norm = None if spec.norm is None else Norm(size, spec.norm, options)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states [R, hidden] to [R, size]."""
        activated = self.options.compute.activate(self.dense(hidden), self.spec.activation)
        return activated if self.norm is None else cast("Tensor", self.norm(activated)[0])

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield from self.dense.tensors(f"{name}.dense")
        if self.norm is not None:
            yield from self.norm.tensors(f"{name}.norm")


class Head(VocabularyWeight):
    """The head: hidden states to logits."""

    def __init__(self, spec: HeadSpec, hidden_size: int, embedding: Embedding, options: LayerOptions) -> None:
        vocab_size, size, transform = embedding.tokens.total, embedding.columns.size, spec.transform
        if transform is not None and transform.size is not None:
            size = transform.size
        super().__init__(options.names.head, vocab_size, size, options, embedding if spec.tied else None)
        self.spec = spec
        self.transform = None if transform is None else HeadTransform(transform, hidden_size, size, options)
        self.projection = None if transform is not None else projection(hidden_size, size, options)
        rows = len(self.weight)
        self.bias = parameter(rows, dtype=options.dtype, device=options.device) if spec.bias else None
        self.never: Tensor | None
        never = torch.tensor(spec.never, dtype=torch.int64, device=options.device) if spec.never else None
        self.register_buffer("never", never, persistent=False)

    def forward(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return logits [R, vocabulary] of hidden states [R, hidden], in `out` if given; on the first rank only."""
        ranks = self.options.ranks
        if self.transform is not None:
            hidden = self.transform(hidden)
        if self.projection is not None:
            hidden = self.projection(hidden)
        if ranks.alone:
            return self._without_never(self._logits(hidden, out))
        product = ranks.gather(self._logits(hidden))
        if ranks.shard.rank:
            return product
        product = self._without_never(product[:, : self.tokens.total])
        return product if out is None else out.copy_(product)

    def _without_never(self, logits: Tensor) -> Tensor:
        """Return `logits` [R, vocabulary], in which tokens that are never chosen have the least number."""
        return logits if self.never is None else logits.index_fill_(1, self.never, torch.finfo(logits.dtype).min)

    def _logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits [R, vocab part] of this rank's part of the vocabulary."""
        scale, softcap = self.spec.scale, self.spec.softcap
        weight = self.weight if self.quantized is None else self.quantized
        return self.options.compute.logits(hidden, weight, out, bias=self.bias, scale=scale, softcap=softcap)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the head's tensors in a checkpoint. A stored copy of the embedding for a tied head is not read."""
        if self.transform is not None:
            yield from self.transform.tensors(self.options.names.head_transform)
        if self.projection is not None:
            yield from self.projection.tensors(self.options.names.embedding_out)
        if self.bias is not None:
            yield plain(f"{self.name}.bias", self.bias[: self.tokens.size], self.tokens)
        if self.spec.tied:
            yield ignored(f"{self.name}.weight")
        else:
            yield from map(with_unit_rows, self.stored()) if self.spec.unit_rows else self.stored()
