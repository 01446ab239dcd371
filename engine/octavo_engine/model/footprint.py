"""How much memory a model needs, by arithmetic alone: nothing is loaded, nothing is measured.

These are the numbers behind the sizing at start, behind `plan`, and behind the message that something does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from octavo_engine.model.gguf_file import read_gguf
from octavo_engine.model.layers.choose_compute import choose_compute
from octavo_engine.model.quantization import FP8
from octavo_engine.model.safetensors_file import has_weights, read_headers
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec, MoESpec

_FLOAT32_BYTES = 4
_INT32_BYTES = 4
_COUNTING_BYTES = 1024 * (4 + 8)
"""The numbers 0, 1, 2 ... that steps are put together with are kept (int32 and int64)."""
_SAMPLER_BYTES = 32
"""Most that is alive for one logit at once: the count of possible tokens so far (int64, twice) beside probabilities,
their sums, and the logits as they were adjusted and scaled."""
_CHOICE_BYTES = 128
"""Of one expert of one token: its number and weight, and the rows' order by expert and back (int64)."""

_NODES_OF_A_LAYER = 16
_NODE_BYTES = 16 << 10
"""Kernels of a layer in a CUDA graph and the driver's memory for one: a guess, not measured, for what is planned before
anything is loaded. At start graphs are measured."""


def num_parameters(spec: ModelSpec) -> int:
    """Weights of the model, a tied embedding counted once; scales of quantized ones are not counted."""
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.intermediate_size
    attention = (query + 2 * key) * spec.attention_bias + hidden * spec.attention_output_bias
    attention += spec.num_heads * spec.attention_sinks + 2 * (query + key) * hidden
    mlp = 3 * hidden * inner + 2 * inner * spec.mlp_bias + hidden * spec.mlp_output_bias
    if spec.moe is not None:
        mlp = spec.moe.experts * (3 * hidden * inner + 2 * inner + hidden + hidden + 1)  # and the router's
    embeddings = spec.vocab_size * hidden * (1 if spec.tie_word_embeddings else 2)
    norms = 2 * hidden + 2 * spec.head_dim * spec.qk_norm
    return spec.num_layers * (attention + mlp + norms) + hidden + embeddings


def linear_shapes(spec: ModelSpec) -> tuple[tuple[int, int], ...]:
    """Rows and columns of the linear layers' weights in one decoder layer, those of one expert."""
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return (query + 2 * key, hidden), (hidden, query), (2 * inner, hidden), (hidden, inner)


def weight_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of the loaded weights: what is quantized in its own type with its scales, all other in `dtype`."""
    scheme, total = spec.quantization, num_parameters(spec) * dtype.itemsize
    if scheme is None:
        return total
    for shape in linear_shapes(spec):
        scales = math.prod(scheme.scale_shape(*shape)) + (scheme.activation == "static")
        saved = math.prod(shape) * (dtype.itemsize - FP8.itemsize) - scales * _FLOAT32_BYTES
        total -= spec.num_layers * saved
    return total


def linear_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of all linear layers' weights in `dtype`."""
    return spec.num_layers * sum(map(math.prod, linear_shapes(spec))) * dtype.itemsize


def dequantized_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes that a device without 8-bit products needs in a step for the largest weight in float32 and `dtype`."""
    if spec.quantization is None:
        return 0
    return max(rows * columns for rows, columns in linear_shapes(spec)) * (_FLOAT32_BYTES + dtype.itemsize)


def checkpoint_bytes(files: ModelFiles) -> int | None:
    """Bytes of the tensors in the files, from their headers alone; None if the weights are not here.

    ModelLoadError if a header is broken.
    """
    if files.gguf is not None:
        return sum(tensor.num_bytes for tensor in read_gguf(files.gguf).tensors.values())
    if files.directory is None or not has_weights(files.directory):
        return None
    return sum(tensor.num_bytes for header in read_headers(files.directory) for tensor in header.tensors.values())


def kv_bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes one token takes in the KV cache for good: in layers of full attention, not in those with a window."""
    return sum(group.bytes_per_token(dtype) for group in spec.kv_groups if group.window is None)


def logits_bytes(spec: ModelSpec, dtype: torch.dtype, max_seqs: int) -> int:
    """Bytes of one step's logits, as computed and in float32."""
    return max_seqs * (spec.hidden_size * dtype.itemsize + spec.vocab_size * (dtype.itemsize + _FLOAT32_BYTES))


def step_bytes(spec: ModelSpec, dtype: torch.dtype, max_tokens: int, max_seqs: int, attention_scratch: int = 0) -> int:
    """An upper bound of what one forward pass allocates besides weights and KV cache, its logits included.

    `attention_scratch` is the backend's `scratch_bytes`. What follows the logits is `sampler_bytes`.
    """
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner, size = spec.hidden_size, spec.intermediate_size, dtype.itemsize
    stream = 3 * hidden * size  # the residual stream, before and after a layer's part, and that part's result
    norm = hidden * size + 3 * hidden * _FLOAT32_BYTES
    rotated = 4 * (query + key) * _FLOAT32_BYTES  # RoPE works in float32: the halves, products and their sum
    attention = (hidden + 2 * (query + 2 * key) + 2 * query) * size + rotated
    mlp = (hidden + 3 * inner) * size if spec.moe is None else _mixture_bytes(spec, spec.moe, size)
    if spec.quantization is not None:  # a linear layer's input in 8 bits, scales, and its product before it is added
        attention, mlp = (part + max(query, inner, hidden) + hidden * size for part in (attention, mlp))
    angles = 4 * spec.head_dim * _FLOAT32_BYTES
    per_token = stream + max(norm, attention, mlp) + angles + input_bytes(len(spec.kv_groups))
    return max_tokens * per_token + attention_scratch + logits_bytes(spec, dtype, max_seqs)


def _mixture_bytes(spec: ModelSpec, moe: MoESpec, size: int) -> int:
    """Bytes of one token in a mixture of experts, by whoever computes it (kernels/moe.py, moe_choice.py, PyTorch).

    PyTorch's grouped product takes most: for each expert of a token the row, gate and up with what becomes of them,
    and float32 results in two orders. One expert after another takes as much, if all tokens go to the same ones.
    """
    routed = (2 * spec.hidden_size + 7 * spec.intermediate_size) * size + 3 * spec.hidden_size * _FLOAT32_BYTES
    router = moe.experts * (size + _FLOAT32_BYTES) + moe.active * _CHOICE_BYTES
    return spec.hidden_size * (2 * size + _FLOAT32_BYTES) + moe.active * routed + router


def widening_bytes(spec: ModelSpec, max_tokens: int) -> int:
    """An upper bound of what one product takes besides, where weight, input and result are widened to float32."""
    shapes = linear_shapes(spec)
    return max(_FLOAT32_BYTES * (rows * (columns + 1) + max_tokens * (rows + columns)) for rows, columns in shapes)


def compute_bytes(spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_tokens: int) -> tuple[int, int]:
    """Bytes that the chosen way to compute keeps of weights besides, and what a step of `max_tokens` takes besides."""
    if device.type != "cpu":  # the device need not be here, nor need Triton
        return 0, 0
    compute = choose_compute(spec, dtype, device)
    copied = 0 if compute.packed is None else linear_bytes(spec, dtype)
    return copied, widening_bytes(spec, max_tokens) * compute.widens


def graph_bytes(
    spec: ModelSpec, dtype: torch.dtype, sizes: Sequence[int], max_model_len: int, block_size: int, scratch: int
) -> int:
    """About what CUDA graphs of decodes of `sizes` sequences keep: one step's memory, inputs, logits, and their nodes.

    `scratch` is the attention backend's for the largest of them.
    """
    largest, groups = max(sizes), len(spec.kv_groups)
    step = step_bytes(spec, dtype, largest, largest, scratch)
    tables = groups * -(-max_model_len // block_size) * _INT32_BYTES
    kept = largest * (spec.vocab_size * _FLOAT32_BYTES + tables + input_bytes(groups))
    return step + kept + len(sizes) * spec.num_layers * _NODES_OF_A_LAYER * _NODE_BYTES


def input_bytes(groups: int) -> int:
    """Bytes of one token's inputs and of what gathers them: its row, place, id, and a slot in each KV group (int64).

    A step of decodes needs most, as it has a sequence for each token.
    """
    return 8 * (12 + groups)


def sampler_bytes(vocab_size: int, max_seqs: int) -> int:
    """An upper bound of what sampling allocates beside the logits it is given.

    Found by PyTorch's memory profiler on the CPU over every kind of request: nothing when all are greedy, 13 bytes a
    logit for logprobs, 28 as soon as a row draws, 32 if one also has penalties or biases. On a GPU the kernels that
    draw take next to nothing; penalties and logprobs are the same operations there.
    """
    return _SAMPLER_BYTES * vocab_size * (max_seqs + 1)


def state_table_bytes(max_seqs: int, max_model_len: int, block_size: int, groups: int) -> int:
    """Bytes of the state table, of the copy of its block tables that a step of all rows gathers, and of what counts."""
    blocks = -(-max_model_len // block_size)
    return _COUNTING_BYTES + max_seqs * _INT32_BYTES * (max_model_len + 1 + 2 * groups * blocks)
