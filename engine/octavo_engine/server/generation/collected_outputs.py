"""The outputs of a sequence, collected until its answer is complete."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.server.generation.sequence import SequenceOutput

_MERGED_AT_ONCE = 64
"""Outputs of a sequence that are merged while the others are computed."""


class CollectedOutputs:
    """All outputs of one sequence so far. Most are one token, and take much less memory when many have been merged."""

    def __init__(self) -> None:
        self._merged: list[SequenceOutput] = []
        self._single: list[SequenceOutput] = []

    def add(self, output: SequenceOutput) -> None:
        """Append an output."""
        self._single.append(output)
        if len(self._single) == _MERGED_AT_ONCE:
            self._merged.append(merge(self._single))
            self._single.clear()

    @property
    def outputs(self) -> list[SequenceOutput]:
        """The outputs, some of them merged."""
        return [*self._merged, *self._single]

    def merged(self) -> SequenceOutput:
        """Return all outputs merged into one."""
        return merge(self.outputs)


def merge(outputs: Sequence[SequenceOutput]) -> SequenceOutput:
    """Merge all outputs of one sequence into one."""
    last = outputs[-1]
    return SequenceOutput(
        last.index,
        "".join(output.text for output in outputs),
        tuple(logprobs for output in outputs for logprobs in output.logprobs),
        last.finish_reason,
        last.stop_reason,
        outputs[0].prompt_logprobs,
        outputs[0].pooled,
        tuple(token for output in outputs for token in output.token_ids),
    )
