"""Copies sampled tokens and log probabilities from the device to the host for the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo_engine.core.request import FinishReason
from octavo_engine.core.step import RowError
from octavo_engine.errors import FORBIDDEN
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.runner.device_copies import ToHost
from octavo_engine.runner.sampling.sampler import LogprobTensors, Sampled

NOT_FINITE: RowError = (
    FinishReason.ERROR,
    "the model gave no finite result for this request: numbers became too large for the dtype of its layers or of the "
    "request's adapter; of the values of --dtype, float32 and bfloat16 have the largest numbers",
)
"""The end of a row whose logits or pooled vector are not finite. Other rows of the step are right."""
_FORBIDDEN: RowError = FinishReason.INVALID, FORBIDDEN


class Readback:
    """The tokens sampled for some rows of a step; the copy to the host begins at once, and `read` waits for it."""

    def __init__(self, sampled: Sampled) -> None:
        self._logprobs = found = sampled.logprobs
        logprobs = () if found is None else (found.tokens, found.chosen, found.ranks, found.ids, found.values)
        forbidden = () if sampled.forbidden is None else (sampled.forbidden,)
        self._has_forbidden = bool(forbidden)
        self._copies = ToHost(sampled.tokens, sampled.finite, *logprobs, *forbidden)

    def read(self) -> tuple[list[int], dict[int, TokenLogprobs], dict[int, RowError]]:
        """Return the tokens [R] and, by index into them, the requested log probabilities and the errors."""
        tokens, finite, *columns = self._copies.wait()
        forbidden = columns.pop().tolist() if self._has_forbidden else []
        logprobs = {} if self._logprobs is None else _by_row(self._logprobs, columns)
        wrong = [i for i, good in enumerate(finite.tolist()) if not good]
        errors = {i: _FORBIDDEN if forbidden and forbidden[i] else NOT_FINITE for i in wrong}
        return tokens.tolist(), logprobs, errors


def _by_row(logprobs: LogprobTensors, columns: Sequence[Tensor]) -> dict[int, TokenLogprobs]:
    found: dict[int, TokenLogprobs] = {}
    lists = (column.tolist() for column in columns)
    for row, count, token, logprob, rank, ids, values in zip(logprobs.rows, logprobs.counts, *lists, strict=True):
        found[row] = TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
    return found
