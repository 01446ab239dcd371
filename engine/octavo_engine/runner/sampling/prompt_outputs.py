"""The outputs of prompts: log probabilities of their tokens, or a pooled vector.

A prompt may come in chunks, so each chunk's part is copied to the host and kept until the last chunk's results are
read. Logits are computed for a few positions at a time: a whole prompt's would take more memory than the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.core.step import Chunk, NewRow, StepPlan
from octavo_engine.model.decoder import Decoder
from octavo_engine.model_outputs import PromptOutput, TokenLogprobs
from octavo_engine.runner.device_copies import ToHost, to_device
from octavo_engine.runner.sampling.sampler import token_logprobs
from octavo_engine.runner.state_table import StateTable

_MOST_LOGITS = 64
"""The most positions whose logits are computed at once, at most as many as sequences may run: so they take no more
memory than a step's sampling, which the memory plan counts."""
_DIVISORS: dict[str, Callable[[int], float]] = {
    "mean": lambda tokens: tokens,
    "mean_sqrt_len": math.sqrt,
    "weightedmean": lambda tokens: tokens * (tokens + 1) / 2,
}
"""What a sum of hidden states is divided by, from the number of tokens, for the kinds of pooling that sum."""


@dataclass(frozen=True, slots=True)
class PromptRead:
    """The tokens of one chunk whose hidden states are read."""

    row: int
    start: int
    """The position of the first read token in its sequence."""
    first_token: int
    """The index of the first read token among the step's tokens."""
    count: int
    """The number of read tokens; may be 0, as nothing is read of a prompt's last token."""
    result: int | None
    """The chunk's index among those that sample, if it is the prompt's last chunk; else None."""


@dataclass(slots=True)
class _Pending:
    """The outputs that a request asks of its prompt, with the parts from the chunks that have been computed."""

    prompt_len: int
    top: int | None
    """The number of likeliest tokens that are reported at each position; None for no log probabilities."""
    pooled: bool
    """Whether the prompt's pooled vector is asked for."""
    parts: list[ToHost] = field(default_factory=list)
    vector: Tensor | None = None
    """[hidden] in float32: the sum of the prompt's hidden states so far, the largest ones, or the first token's."""


@dataclass(frozen=True, slots=True)
class PromptReadback:
    """The outputs of a prompt while they are copied to the host."""

    top: int | None
    parts: list[ToHost]
    pooled: ToHost | None
    """[hidden], or [classes] of a model that classifies, in float32."""

    def read(self) -> PromptOutput:
        """Wait for the copies, and return the prompt's outputs."""
        found: list[TokenLogprobs] = []
        for part in self.parts:
            columns = (column.tolist() for column in part.wait())
            for token, logprob, rank, ids, values in zip(*columns, strict=True):
                likeliest = tuple(zip(ids[: self.top], values[: self.top], strict=True))
                found.append(TokenLogprobs(token, logprob, rank, likeliest))
        pooled = b"" if self.pooled is None else self.pooled.wait()[0].numpy().tobytes()
        return PromptOutput(tuple(found), pooled)


def has_finite_vector(output: PromptOutput) -> bool:
    """Return False if a prompt's pooled vector has a number that is not finite, which JSON does not have."""
    return bool(np.isfinite(np.frombuffer(output.pooled, np.float32)).all())


class PromptOutputs:
    """Computes the outputs of prompts in the rows of one state table. Rows that ask for no output cost nothing."""

    def __init__(self, decoder: Decoder, table: StateTable, pooling: str = "last") -> None:
        """Start without rows; `pooling`, one of `COMPUTED_POOLINGS`, says how hidden states become a vector."""
        self._decoder = decoder
        self._table = table
        self._pooling = pooling
        self._rows: dict[int, _Pending] = {}

    def begin(self, new_rows: Iterable[NewRow]) -> None:
        """Note the prompt outputs that new rows' requests ask for, unless they were given before a preemption."""
        for new in new_rows:
            self._rows.pop(new.row, None)
            top = new.sampling.prompt_logprobs
            if (new.pooled or top is not None) and len(new.token_ids) == new.prompt_len:
                self._rows[new.row] = _Pending(new.prompt_len, top, new.pooled)

    def reads(self, plan: StepPlan) -> list[PromptRead]:
        """Return the chunks of a plan whose hidden states are to be read."""
        found: list[PromptRead] = []
        if not self._rows:
            return found
        first_token, result = plan.num_decode_tokens, 0
        for chunk in plan.chunks:
            if (pending := self._rows.get(chunk.row)) is not None:
                count = self._count(pending, chunk)
                found.append(PromptRead(chunk.row, chunk.start, first_token, count, result if chunk.samples else None))
            first_token += chunk.num_tokens
            result += chunk.samples
        return found

    def _count(self, pending: _Pending, chunk: Chunk) -> int:
        """Return how many of a chunk's first tokens have hidden states that are to be read."""
        scored = 0 if pending.top is None else max(0, min(chunk.num_tokens, pending.prompt_len - 1 - chunk.start))
        if not pending.pooled or self._pooling == "last":
            return scored
        return max(scored, int(chunk.start == 0)) if self._pooling == "cls" else chunk.num_tokens

    def read(self, reads: Sequence[PromptRead], sampled: Tensor, hidden: Tensor) -> dict[int, PromptReadback]:
        """Use the hidden states [sum of counts, hidden] of `reads`; return the complete outputs by `result` index.

        Nothing is noted before all is computed, so that the step can be computed again after an error.

        `sampled` [C, hidden] are the last hidden states of the chunks that sample.
        """
        complete: dict[int, PromptReadback] = {}
        noted: dict[int, _Pending] = {}
        for read, states in zip(reads, torch.split(hidden, [read.count for read in reads]), strict=True):
            pending = self._rows[read.row]
            parts, vector = pending.parts, pending.vector
            if pending.top is not None:
                scored = states[: max(0, pending.prompt_len - 1 - read.start)]
                parts = parts + self._scores(pending.top, read, scored)
            if pending.pooled:
                vector = self._pool(vector, states, read.start)
            noted[read.row] = pending = replace(pending, parts=parts, vector=vector)
            if read.result is not None:
                pooled = self._pooled(pending, sampled[read.result]) if pending.pooled else None
                complete[read.result] = PromptReadback(pending.top, pending.parts, pooled)
        self._rows |= noted
        self.forget(read.row for read in reads if read.result is not None)
        return complete

    def forget(self, rows: Iterable[int]) -> None:
        """Note that the requests in `rows` ask for no more outputs."""
        for row in rows:
            self._rows.pop(row, None)

    def _pool(self, vector: Tensor | None, hidden: Tensor, start: int) -> Tensor | None:
        """Return a prompt's pooled vector so far with the hidden states [count, hidden] of its tokens from `start`."""
        if self._pooling == "last":
            return None
        if self._pooling == "cls":
            return hidden[0].float() if vector is None else vector
        states = self._decoder.before_mean(hidden).float()
        if self._pooling == "max":
            largest = states.amax(0)
            return largest if vector is None else torch.maximum(vector, largest)
        if self._pooling == "weightedmean":
            states = states * torch.arange(start + 1, start + 1 + len(states), device=states.device)[:, None]
        total = states.sum(0)
        return total if vector is None else vector + total

    def _pooled(self, pending: _Pending, last: Tensor) -> ToHost:
        """Return the pooled output of a prompt, given `last` [hidden], the hidden state of its last token."""
        vector = last.float() if pending.vector is None else pending.vector
        if (divisor := _DIVISORS.get(self._pooling)) is not None:
            vector = vector / divisor(pending.prompt_len)
        return ToHost(self._decoder.pooled(vector[None])[0].float())

    def _scores(self, top: int, read: PromptRead, hidden: Tensor) -> list[ToHost]:
        """Score the tokens that follow those of `hidden` [count, hidden]; only rank 0 returns scores."""
        found: list[ToHost] = []
        if not len(hidden):  # a chunk of the prompt's last token alone
            return found
        size = max(2, min(_MOST_LOGITS, len(self._table.tokens)))
        first = read.start + 1
        tokens = self._table.tokens[read.row, first : first + len(hidden)].long()
        for states, some in zip(torch.split(hidden, size), torch.split(tokens, size), strict=True):
            logits = self._decoder.logits(states)  # all ranks compute them together
            if self._decoder.ranks.shard.rank == 0:
                found.append(ToHost(some, *token_logprobs(logits, some, top)))
        return found


def with_read_tokens(inputs: StepInputs, reads: Sequence[PromptRead]) -> StepInputs:
    """Return inputs whose step gives the hidden states of the sampled tokens, then those of `reads`."""
    indices = [index for read in reads for index in range(read.first_token, read.first_token + read.count)]
    more = to_device(indices, inputs.token_indices.device)
    return replace(inputs, token_indices=torch.cat([inputs.token_indices, more]), all_sampled=False)
