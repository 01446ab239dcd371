"""The time of a step on a simulated device: a roofline with a few measured or published constants.

Linear layers take as long as reading all weights or as computing all tokens, whichever is longer. Attention reads the
context of each decoding row and computes each (query, key) pair of a prefill. Blocks that are copied or swapped take
the time of their bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.core.step import BlockOpKind, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The seconds of a step, term by term."""

    note: str
    """The source of the numbers."""
    fixed: float
    """Fixed time of any step: launches, sampling's fixed part."""
    weights: float
    """Reading all weights once."""
    per_token: float
    """The linear layers' arithmetic for one token."""
    per_row: float
    """Sampling one row."""
    per_context: float
    """Reading keys and values of one token of a decoding row's context."""
    per_pair: float
    """Attention's arithmetic of one query and one key in a prefill."""
    per_copy: float
    """Copying one block within the device."""
    per_swap: float
    """Moving one block of 16 tokens to or from CPU memory."""
    blocks: int
    """Blocks of 16 tokens that fit into the device's memory beside the weights."""

    def seconds(self, plan: StepPlan) -> float:
        """Return the seconds of one step."""
        moves = sum(self.per_copy if op.kind is BlockOpKind.COPY else self.per_swap for op in plan.block_ops)
        tokens = plan.num_tokens
        if tokens == 0:  # a step that only moves blocks
            return moves
        samples = len(plan.decode_rows)
        context, pairs = sum(plan.decode_starts) + samples, 0
        for chunk in plan.chunks:
            samples += chunk.samples
            pairs += chunk.num_tokens * (2 * chunk.start + chunk.num_tokens + 1) // 2
        linear = max(self.weights, tokens * self.per_token)
        attention = context * self.per_context + pairs * self.per_pair
        return self.fixed + linear + samples * self.per_row + attention + moves

    def capacity(self, *, fresh: float, prompt: float, answer: float, batch: int) -> float:
        """Return the approximate requests per second with `batch` of them running.

        `prompt` and `answer` are average lengths in tokens, and `fresh` is the part of the prompt that is in no cache.
        """
        decode = max(self.weights / batch, self.per_token) + self.fixed / batch + self.per_row
        decode += (prompt + answer / 2) * self.per_context
        prefill = fresh * (self.per_token + (prompt - fresh / 2) * self.per_pair)
        return 1 / (prefill + answer * decode)


H200_8B = CostModel(
    note="8B model in bfloat16 on an H200, computed: 16.1 GB of weights and 128 KiB of KV a token at 75 % of 4.8 TB/s, "
    "989 TFLOP/s at 60 %, 50 GB/s to CPU memory",
    fixed=0.5e-3,
    weights=16.1e9 / (0.75 * 4.8e12),
    per_token=2 * 8.03e9 / (0.6 * 989e12),
    per_row=1e-6,
    per_context=131072 / (0.75 * 4.8e12),
    per_pair=4 * 32 * 4096 / (0.6 * 989e12),
    per_copy=2 * 16 * 131072 / (0.75 * 4.8e12),
    per_swap=16 * 131072 / 50e9,
    blocks=53_000,
)
CPU_SMOLLM2 = CostModel(
    note="SmolLM2-135M in bfloat16 on two cores, fitted to bench/results/2026-11-21-cpu: 29, 51 and 91 ms a token at "
    "1, 8 and 32 users, 151 ms for 128 prompt tokens",
    fixed=12e-3,
    weights=15e-3,
    per_token=0.9e-3,
    per_row=0.5e-3,
    per_context=6e-6,
    per_pair=0.3e-6,
    per_copy=16 * 23040 / 13e9,
    per_swap=16 * 23040 / 13e9,
    blocks=11_650,
)
COSTS = {"h200-8b": H200_8B, "cpu-smollm2": CPU_SMOLLM2}
