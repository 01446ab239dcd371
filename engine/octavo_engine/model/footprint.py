"""Computes how much memory a model needs, by a walk over a decoder on the device `meta`, which allocates nothing.

The memory plan at start, `octavo-engine plan`, and the message that a model does not fit use these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.attention.bidirectional import scratch_bytes
from octavo_engine.model.checkpoint.safetensors_file import has_weights, read_headers
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.layers.attention.grouped_query_attention import Attention
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.choose_compute import planned_compute
from octavo_engine.model.layers.operations.fused import FusedLayers, fused_bytes
from octavo_engine.model.layers.recurrent.gated_delta_net import GatedDeltaNet
from octavo_engine.model.layers.recurrent.kimi_delta_attention import KimiDeltaAttention
from octavo_engine.model.source import ModelFiles

_FLOAT32_BYTES = 4
_INT32_BYTES = 4
_COUNTING_BYTES = 1024 * (4 + 8)
"""The bytes of the kept numbers 0, 1, 2 ... with which steps' inputs are gathered (int32 and int64)."""
_SAMPLER_BYTES = 32
"""The most bytes that sampling holds for one logit at once: cumulative counts of tokens (int64, twice), probabilities,
their sums, and the adjusted and scaled logits."""
_PROCESS_BYTES = 24 << 20
"""The bytes by which a process grows beside what the plan counts: objects of Python, and memory that malloc keeps.
Measured: 15 to 23 MiB (bench/memory_plan.py)."""
_GGUF_BYTES = 40 << 20
"""The same for what reads a GGUF file: the package `gguf`, and the vocabulary in its header. Measured: 21 to 38 MiB."""
_NODES_OF_A_LAYER = 16
_NODE_BYTES = 16 << 10
"""The driver's memory for one kernel in a CUDA graph. Like the number of kernels in a layer it is a guess, which was
not measured, for the memory plan before loading; after loading, graphs are measured."""


def weight_bytes(decoder: Decoder) -> int:
    """Return the bytes of the weights; a tied embedding counts once."""
    after_pooling = 0 if decoder.dense is None else decoder.dense.nbytes
    return sum(parameter.nbytes for parameter in decoder.parameters()) + after_pooling


def compute_bytes(decoder: Decoder, device: torch.device, max_tokens: int) -> int:
    """Return the further bytes that the chosen operations take in a step of `max_tokens`."""
    compute = planned_compute(decoder.spec, decoder.dtype, device, decoder.ranks.shard)
    return widening_bytes(decoder, max_tokens) * compute.widens


def process_bytes(device: torch.device, *, from_gguf: bool) -> int:
    """Return the bytes of a CPU's memory by which the process itself grows after the plan is made; 0 on other devices.

    `from_gguf`: the weights come from a GGUF file.
    """
    return (_PROCESS_BYTES + _GGUF_BYTES * from_gguf) * (device.type == "cpu")


def is_fused(decoder: Decoder, device: torch.device, backend: str) -> bool:
    """Return True if every step on `device` is one call of the C kernels, which need little memory."""
    spec = decoder.spec
    plain = spec.quantization is None and all(mixer.rope is not None for mixer in spec.attention_mixers)
    if device.type != "cpu" or backend != "cpu" or not plain:
        return False
    runner = planned_compute(spec, decoder.dtype, device, decoder.ranks.shard).runner
    return isinstance(runner, FusedLayers) and runner.fuses_any_number


def module_scratch_bytes(decoder: Decoder) -> int:
    """Return the bytes that a step needs only once, in the module that needs most.

    They are a weight that is dequantized in each product, an expert's rows, or a chunk of a prompt.
    """
    with_scratch = Linear | MoE | GatedDeltaNet | KimiDeltaAttention
    return max(module.scratch_bytes for module in decoder.modules() if isinstance(module, with_scratch))


def bidirectional_bytes(decoder: Decoder, max_tokens: int, longest: int) -> int:
    """Return the scratch bytes of bidirectional attention, in the layer that needs most."""
    mixers = [mixer for mixer in decoder.attentions() if isinstance(mixer, Attention)]
    sizes = {(mixer.heads.size, mixer.spec.head_dim, mixer.score_terms is not None) for mixer in mixers}
    itemsize = decoder.dtype.itemsize
    by_layer = (
        scratch_bytes(heads, size, max_tokens, longest, itemsize, distances=terms) for heads, size, terms in sizes
    )
    return max(by_layer, default=0)


def compressed_attention_bytes(decoder: Decoder, max_tokens: int, longest: int) -> int:
    """Return the scratch bytes of attention to compressed keys or chosen tokens, in the layer that needs most."""
    by_layer = (mixer.scratch_bytes(max_tokens, longest) for mixer in decoder.choosing_attentions())
    return max(by_layer, default=0)


def checkpoint_bytes(files: ModelFiles) -> int | None:
    """Return the bytes of the tensors in the files, from their headers alone; None if the weights are not here.

    ModelLoadError if a header is broken.
    """
    if files.gguf is not None:
        return sum(tensor.num_bytes for tensor in read_model(files.gguf).tensors.values())
    if files.directory is None or not has_weights(files.directory):
        return None
    return sum(tensor.num_bytes for header in read_headers(files.directory) for tensor in header.tensors.values())


def kv_bytes_per_token(groups: Iterable[KVGroupSpec], dtype: torch.dtype, block_size: int = 16) -> int:
    """Return the bytes that a token keeps in the KV cache: those of layers with full attention, not with a window."""
    return sum(group.bytes_per_token(dtype, block_size) for group in groups if group.window is None)


def logits_bytes(hidden_size: int, vocab_size: int, dtype: torch.dtype, max_seqs: int) -> int:
    """Return the bytes of one step's logits, as computed and in float32."""
    return max_seqs * (hidden_size * dtype.itemsize + vocab_size * (dtype.itemsize + _FLOAT32_BYTES))


def step_bytes(
    decoder: Decoder, max_tokens: int, max_seqs: int, attention_scratch: int = 0, *, fused: bool = False
) -> int:
    """Return an upper bound of what one forward pass allocates besides weights and KV cache, its logits included.

    `attention_scratch` is the backend's `scratch_bytes`. What follows the logits is `sampler_bytes`. `fused`: all
    layers are computed in one call (`is_fused`).
    """
    layers, spec = decoder.decoder_layers, decoder.spec
    angles = [2 * rope.inv_freq.numel() * _FLOAT32_BYTES for rope in decoder.rotations()]  # their cosines and sines
    extra = 0 if decoder.per_layer_embedding is None else decoder.per_layer_embedding.step_bytes()
    of_layers = fused_bytes(spec, max_tokens) if fused else max_tokens * max(layer.step_bytes() for layer in layers)
    # The last one is made from angles, which may have frequencies of their own.
    per_token = sum(angles) + max(angles, default=0) + extra + input_bytes(len(decoder.kv_groups))
    logits = logits_bytes(spec.hidden_size, logits_width(decoder), decoder.dtype, max_seqs)
    per_sequence = max(layer.sequence_bytes() for layer in layers)
    return of_layers + max_tokens * per_token + max_seqs * per_sequence + attention_scratch + logits


def logits_width(decoder: Decoder) -> int:
    """Return how many logits this rank computes for one place; one for a model that does not generate."""
    return 1 if decoder.head is None else len(decoder.head.weight)


def widening_bytes(decoder: Decoder, max_tokens: int) -> int:
    """Return an upper bound of a product's further bytes where weight, input and result are widened to float32."""
    shapes = [(sum(linear.parts), linear.columns.size) for linear in decoder.linears()]
    shapes += [shape for mixture in decoder.mixtures() for shape in mixture.weight_shapes]
    return max(_FLOAT32_BYTES * (rows * (columns + 1) + max_tokens * (rows + columns)) for rows, columns in shapes)


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The number of an engine's CUDA graphs, and the size of the largest of them."""

    graphs: int
    tokens: int
    """Tokens of the steps that the largest graph computes."""
    sequences: int
    """Sequences of the steps for which a graph has room at most."""


def graph_bytes(decoder: Decoder, sizes: GraphSizes, max_model_len: int, block_size: int, scratch: int) -> int:
    """Return roughly the bytes of CUDA graphs: a step's memory, inputs, logits, nodes.

    `scratch` is the bytes that the attention backend needs for the largest graph.
    """
    groups = len(decoder.kv_groups)
    step = step_bytes(decoder, sizes.tokens, sizes.sequences, scratch)
    tables = groups * -(-max_model_len // block_size) * _INT32_BYTES
    inputs = sizes.sequences * (logits_width(decoder) * _FLOAT32_BYTES + tables) + sizes.tokens * input_bytes(groups)
    return step + inputs + sizes.graphs * len(decoder.layers) * _NODES_OF_A_LAYER * _NODE_BYTES


def input_bytes(groups: int) -> int:
    """Return the bytes of one token's inputs and of gathering them: row, place, id and a slot in each KV group (int64).

    A step of decodes needs most, as it has a sequence for each token.
    """
    return 8 * (12 + groups)


def sampler_bytes(vocab_size: int, together: int) -> int:
    """Return an upper bound of what sampling allocates beside the logits it is given, for so many places together.

    Found by PyTorch's memory profiler on the CPU over every kind of request: nothing when all are greedy, 13 bytes a
    logit for logprobs, 28 as soon as a row draws, 32 if one also has penalties or biases. On a GPU the kernels that
    draw take next to nothing; penalties and logprobs are the same operations there.
    """
    return _SAMPLER_BYTES * vocab_size * (together + 1)


def state_table_bytes(max_seqs: int, max_sampled: int, max_model_len: int, block_size: int, groups: int) -> int:
    """Return the bytes of the state table, with those for gathering a step's inputs and block tables from it."""
    blocks = -(-max_model_len // block_size)
    rows = max_seqs * (max_model_len + 1 + groups * blocks)
    return _COUNTING_BYTES + _INT32_BYTES * (rows + max_sampled * groups * blocks)
