"""What stands before the layers and after them: embeddings of tokens, and the head that gives logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.model.checkpoint import CheckpointTensor, ignored, plain
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.shard import span
from octavo_engine.model.spec import HeadSpec


class VocabularyWeight(nn.Module):
    """A row for each token of this rank's part of the vocabulary.

    All ranks have as many rows, of which the last ones use fewer where the vocabulary does not divide.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, options: LayerOptions, weight: nn.Parameter | None = None
    ) -> None:
        """With a `weight` of its own, unless one is given."""
        super().__init__()
        self.options = options
        shard = options.ranks.shard
        self.tokens = span(shard.vocabulary(vocab_size), vocab_size)
        rows = -(-vocab_size // shard.size)
        own = parameter(rows, hidden_size, dtype=options.dtype, device=options.device) if weight is None else weight
        self.weight = own

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """What a checkpoint has of it."""
        yield plain(f"{name}.weight", self.weight[: self.tokens.size], self.tokens)


class Embedding(VocabularyWeight):
    """Token ids to hidden states, times a scale."""

    def __init__(self, vocab_size: int, hidden_size: int, scale: float, options: LayerOptions) -> None:
        super().__init__(vocab_size, hidden_size, options)
        self.scale = scale
        self._rounded_scale = torch.tensor(scale, dtype=options.dtype, device="cpu").item()
        """As transformers has it: Gemma's 55.43 is 55.5 in bfloat16."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] to [T, hidden]."""
        hidden = self.options.ranks.all_reduce(self._own(token_ids))
        return hidden if self.scale == 1 else hidden.mul_(self._rounded_scale)

    def _own(self, token_ids: Tensor) -> Tensor:
        """The embeddings of the tokens that are this rank's, zeros for others; [T, hidden]."""
        if self.options.ranks.alone:
            return F.embedding(token_ids, self.weight)
        places = token_ids - self.tokens.start
        elsewhere = (places < 0) | (places >= len(self.weight))
        found = F.embedding(places.masked_fill(elsewhere, 0), self.weight)
        return found.masked_fill_(elsewhere.unsqueeze(1), 0)


class Head(VocabularyWeight):
    """Hidden states to logits."""

    def __init__(self, spec: HeadSpec, embedding: Embedding, options: LayerOptions) -> None:
        vocab_size, hidden_size = embedding.tokens.total, embedding.weight.shape[1]
        super().__init__(vocab_size, hidden_size, options, embedding.weight if spec.tied else None)
        self.spec = spec

    def forward(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits [R, vocabulary] of hidden states [R, hidden], into `out` if it is given; on the first rank only."""
        ranks = self.options.ranks
        if ranks.alone:
            return self._logits(hidden, out)
        product = ranks.gather(self._logits(hidden))
        if ranks.shard.rank:
            return product
        product = product[:, : self.tokens.total]
        return product if out is None else out.copy_(product)

    def _logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Those of this rank's part of the vocabulary."""
        scale, softcap = self.spec.scale, self.spec.softcap
        return self.options.compute.logits(hidden, self.weight, out, scale=scale, softcap=softcap)

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """What a checkpoint has of it: where it is tied, perhaps a copy of the embedding, which is not read."""
        if self.spec.tied:
            yield ignored(f"{name}.weight")
        else:
            yield from super().tensors(name)
