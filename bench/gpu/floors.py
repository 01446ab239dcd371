"""The shortest possible time of a step: the bytes it must read and its operations, divided by the machine's rates.

Bytes are counted once: every matrix that a step multiplies with, and the keys and values of every context. Of an
embedding only the rows of the step's tokens are read. Activations are not counted: they are few and mostly in the L2
cache. An operation is a multiplication or an addition. Products with weights, those of experts, and attention come one
after another, and the floor of each is the longer of the times for its bytes and its operations: a batch whose products
are bound by compute and whose attention by memory takes the sum of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.gpu.shapes import Shape

_BF16, _FP8 = 2, 1
_SIZES = {"bf16": _BF16, "fp8": _FP8, "int4": 0.5 + 2 * _BF16 / 32}
"""Bytes of a weight in linear layers; of `--quantization int4`, 32 share a scale and a minimum of 16 bits."""
_MXFP4 = 0.5 + 1 / 32
"""Bytes of one MXFP4 weight: four bits, and a byte of scale for every 32 weights."""


@dataclass(frozen=True)
class Rates:
    """The rates of a machine, in bytes and operations per second."""

    name: str
    read: float
    """Reading device memory."""
    matmul: dict[str, float]
    """Matrix products by the type of their operands: `bf16`, `fp8`."""


H200_NOMINAL = Rates("H200, by its data sheet", 4.8e12, {"bf16": 990e12, "fp8": 1979e12})
H200_SEEN = Rates("H200, as seen here", 4.3e12, {"bf16": 790e12})
"""Measured on 2026-10-28 and 2026-11-04: a copy, bytes read and written counted; an 8192 × 8192 × 8192 product."""


@dataclass(frozen=True)
class Floor:
    """The floor of one step, or of a whole run."""

    bytes: float
    operations: float
    seconds: float
    bound: str
    """`memory`, `compute`, or `both` where kernels differ."""


def layer_weights(shape: Shape) -> int:
    """Return the number of weights in the matrices of one layer, with all its experts."""
    attention = shape.hidden * (2 * shape.query + 2 * shape.key)
    return attention + shape.experts * shape.hidden + 3 * max(1, shape.experts) * shape.hidden * shape.inner


def active_weights(shape: Shape) -> int:
    """Return the number of weights that one token is multiplied with, including the head that computes logits."""
    experts = shape.experts - shape.active_experts if shape.experts else 0
    idle = 3 * experts * shape.hidden * shape.inner
    return shape.layers * (layer_weights(shape) - idle) + shape.vocab * shape.hidden


def weight_bytes(shape: Shape, tokens: int, weights: str = "bf16") -> float:
    """Return the bytes of all matrices that a step of `tokens` reads. The head stays in bfloat16, experts in MXFP4.

    Counts only experts to which at least one of the tokens is routed; each token is routed at random.
    """
    size = _SIZES[weights]
    head = shape.vocab * shape.hidden * _BF16
    if not shape.experts:
        return shape.layers * layer_weights(shape) * size + head
    used = shape.experts * (1 - (1 - shape.active_experts / shape.experts) ** tokens)
    expert = 3 * shape.hidden * shape.inner
    dense = layer_weights(shape) - shape.experts * expert
    return shape.layers * (dense * size + used * expert * _MXFP4) + head


def kv_bytes(shape: Shape, context: int) -> int:
    """Return the bytes of the keys and values (bfloat16) that one token attends to, in all layers."""
    seen = context if shape.window is None else min(context, shape.window)
    sliding = 0 if shape.window is None else (shape.layers + 1) // 2
    return 2 * shape.key * _BF16 * ((shape.layers - sliding) * context + sliding * seen)


def attention_operations(shape: Shape, past: int, tokens: int) -> int:
    """Return the operations of `tokens` queries after `past` others: two products for each visible pair."""
    pairs = tokens * past + tokens * (tokens + 1) // 2
    if shape.window is None:
        return 4 * shape.query * shape.layers * pairs
    sliding = (shape.layers + 1) // 2
    near = sum(min(shape.window, past + i + 1) for i in range(tokens))
    return 4 * shape.query * ((shape.layers - sliding) * pairs + sliding * near)


@dataclass(frozen=True)
class Part:
    """Kernels of one kind in a step."""

    bytes: float
    operations: float
    operands: str
    """The type whose rate of matrix products counts."""


def _floor(parts: Sequence[Part], rates: Rates) -> Floor:
    times = [(part.bytes / rates.read, part.operations / rates.matmul[part.operands]) for part in parts]
    bounds = {"memory" if memory >= compute else "compute" for memory, compute in times if memory or compute}
    bound = bounds.pop() if len(bounds) == 1 else "both"
    num_bytes, operations = sum(part.bytes for part in parts), sum(part.operations for part in parts)
    return Floor(num_bytes, operations, sum(map(max, times)), bound)


def _products(shape: Shape, tokens: int, logits: int, weights: str) -> list[Part]:
    """Return the parts of `tokens` with all layers' weights, and of `logits` of them with the head; experts apart."""
    head = shape.vocab * shape.hidden
    expert = 3 * shape.layers * shape.active_experts * shape.hidden * shape.inner if shape.experts else 0
    dense = active_weights(shape) - head - expert
    dense_bytes, operands = dense * _SIZES[weights], "fp8" if weights == "fp8" else "bf16"
    if shape.experts:
        of_experts = weight_bytes(shape, tokens, weights) - dense_bytes - head * _BF16
        return [
            Part(dense_bytes, 2 * tokens * dense, operands),
            Part(of_experts, 2 * tokens * expert, weights),
            Part(head * _BF16, 2 * logits * head, "bf16"),
        ]
    return [Part(dense_bytes, 2 * tokens * dense, operands), Part(head * _BF16, 2 * logits * head, "bf16")]


def decode(shape: Shape, batch: int, context: int, rates: Rates, weights: str = "bf16") -> Floor:
    """Return the floor of a decode step: one token for each of `batch` sequences with contexts of `context` tokens."""
    attention = Part(batch * kv_bytes(shape, context), batch * attention_operations(shape, context - 1, 1), "bf16")
    return _floor([*_products(shape, batch, batch, weights), attention], rates)


def prefill(shape: Shape, tokens: int, rates: Rates, weights: str = "bf16", past: int = 0) -> Floor:
    """Return the floor of a prefill step: `tokens` of a prompt after `past` others, with the last token's logits."""
    attention = Part(kv_bytes(shape, past + tokens), attention_operations(shape, past, tokens), "bf16")
    return _floor([*_products(shape, tokens, 1, weights), attention], rates)


def mixed(shape: Shape, batch: int, context: int, tokens: int, rates: Rates, weights: str = "bf16") -> Floor:
    """Return the floor of a step of `batch` decodes and a whole prompt of `tokens`."""
    operations = batch * attention_operations(shape, context - 1, 1) + attention_operations(shape, 0, tokens)
    attention = Part(batch * kv_bytes(shape, context) + kv_bytes(shape, tokens), operations, "bf16")
    return _floor([*_products(shape, batch + tokens, batch + 1, weights), attention], rates)


def paged_decode(shape: Shape, batch: int, context: float, rates: Rates, element: int = _BF16) -> Floor:
    """Return the floor of the attention of one layer, which has no window."""
    num_bytes = batch * (2 * shape.key * context * element + 2 * shape.query * _BF16)
    return _floor([Part(num_bytes, batch * 4 * shape.query * context, "bf16")], rates)


def offline(
    shape: Shape, requests: int, prompt: int, answer: int, batch: int, rates: Rates, weights: str = "bf16"
) -> Floor:
    """Return the floor of all requests, `batch` at a time from the first token to the last, without gaps.

    Prompts count only with their operations: many of them may share a step, and its reading of the weights.
    """
    first = prefill(shape, prompt, rates, weights).operations
    return _answered(shape, requests * first, requests, prompt, answer, batch, rates, weights)


def shared_beginnings(
    shape: Shape,
    requests: int,
    beginnings: int,
    beginning: int,
    rest: int,
    answer: int,
    batch: int,
    rates: Rates,
    weights: str = "bf16",
) -> Floor:
    """Return the floor of all requests whose prompts have `beginnings` different prefixes.

    Each prefix is computed once, the rest for each request.
    """
    head = shape.vocab * shape.hidden
    first = prefill(shape, beginning, rates, weights).operations - 2 * head
    after = rest * 2 * (active_weights(shape) - head) + 2 * head + attention_operations(shape, beginning, rest)
    operations = beginnings * first + requests * after
    return _answered(shape, operations, requests, beginning + rest, answer, batch, rates, weights)


def _answered(
    shape: Shape, prompts: float, requests: int, prompt: int, answer: int, batch: int, rates: Rates, weights: str
) -> Floor:
    """Return the floor of `prompts` operations, then every step of the answers at their average context."""
    steps = requests / batch * answer
    middle = decode(shape, batch, prompt + answer // 2, rates, weights)
    seconds = prompts / rates.matmul[weights] + steps * middle.seconds
    return Floor(steps * middle.bytes, prompts + steps * middle.operations, seconds, "both")
