"""The attention backend `flashinfer` for GPUs: FlashInfer's kernels (arXiv 2501.01005), if its package is installed.

XQA computes decodes; it reads block tables and lengths on the device, as our kernels do, so that CUDA graphs can
capture it. FlashInfer's paged prefill (FlashAttention-3 on Hopper) computes chunks of prompts; it is planned on the
host once a step, from lengths that the host knows: such steps run eagerly, and the host does not wait for the device.
Kernels come compiled with the wheel `flashinfer-jit-cache`; without it nvcc compiles them when they are first measured.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.triton import TritonAttention

_HEAD_DIMS = (64, 128, 256)
_BLOCK_SIZES = (16, 32, 64, 128)
_LARGEST_GROUP = 32
_XQA_BYTES = 32 << 20
"""XQA's workspace: 8 MiB of counters, zero between launches, and partial results, 16 KiB a multiprocessor."""
_PLAN_BYTES = 1 << 20
"""The scratch memory of a prefill, which needs little as it does not split contexts."""
_WRAPPER_BYTES = _PLAN_BYTES + (9 << 20)
"""The bytes of a prefill wrapper, including the memory that it allocates itself."""
_GROUPS = 2
"""The number of KV groups that the memory plan counts: full attention and a window."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The last C sequences of a step; int32, on the host but for the pages."""

    starts: Tensor
    """[C + 1], where each chunk's query tokens begin, counted from the first chunk's."""
    page_starts: Tensor
    """[C + 1], where each chunk's blocks begin in `pages`."""
    last_page_lens: Tensor
    """[C], the tokens in each chunk's last block."""
    pages: Tensor
    """Block ids on the device."""


@dataclass(frozen=True, slots=True)
class FlashInferMetadata:
    """A step's data for one KV group: sequences with one query token, then chunks."""

    slots: Tensor
    """[T] int64, as in StepInputs."""
    block_table: Tensor
    """[number of decodes, M] int32, contiguous."""
    context_lens: Tensor
    """[number of decodes] int32, at least 1."""
    window_left: int
    """The number of earlier tokens that a query sees; -1: all."""
    chunks: Chunks | None
    prefill: Prefill | None
    no_padding: bool
    """Whether each of the step's tokens belongs to a sequence."""


class Prefill:
    """FlashInfer's prefill of one KV group, planned when a step's first layer asks for it."""

    def __init__(self, device: torch.device) -> None:
        scratch = torch.empty(_PLAN_BYTES, dtype=torch.uint8, device=device)
        self._wrapper: Any = _module("prefill").BatchPrefillWithPagedKVCacheWrapper(scratch, kv_layout="NHD")
        self._planned: tuple[Chunks, float] | None = None
        self._copied: torch.cuda.Event | None = None

    def run(
        self, output: Tensor, query: Tensor, cache: LayerCache, chunks: Chunks, window_left: int, scale: float
    ) -> None:
        """Write the attention of the chunks' queries [N, H, D] into `output`."""
        if self._planned is None or self._planned[0] is not chunks or self._planned[1] != scale:
            self._plan(query, cache, chunks, window_left, scale)
        self._wrapper.run(query, (cache.key, cache.value), out=output)

    def _plan(self, query: Tensor, cache: LayerCache, chunks: Chunks, window_left: int, scale: float) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # the last plan's page-locked memory is in use until its step begins
        self._wrapper.plan(
            chunks.starts,
            chunks.page_starts,
            chunks.pages,
            chunks.last_page_lens,
            query.shape[1],
            cache.key.shape[2],
            query.shape[2],
            cache.key.shape[1],
            causal=True,
            sm_scale=scale,
            window_left=window_left,
            q_data_type=query.dtype,
            kv_data_type=cache.key.dtype,
            disable_split_kv=True,
        )
        self._planned = (chunks, scale)
        if query.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()


class FlashInferAttention(TritonAttention):
    """Backend `flashinfer`. Caches are [num_blocks, B, K, D], written as the Triton backend does."""

    name = "flashinfer"
    mixed_graph_safe = False

    def __init__(self) -> None:
        super().__init__()
        self._workspaces: dict[torch.device, Tensor] = {}
        self._prefills: dict[int, Prefill] = {}

    def prepare(self, inputs: StepInputs, group: int, block_size: int, window: int | None) -> Any:
        """Split the step into decodes and chunks. Of decodes only their number is read on the host.

        XQA divides by zero without a context, so a graph's padding attends to one token; its result is not used.
        """
        query_lens = inputs.query_lens_host
        decodes = sum(1 for _ in takewhile(lambda count: count == 1, query_lens))
        chunks = None
        if decodes < len(query_lens):
            chunks = _chunks(inputs, group, block_size, decodes)
            if group not in self._prefills:
                self._prefills[group] = Prefill(inputs.positions.device)
        return FlashInferMetadata(
            slots=inputs.slot_mapping[group],
            block_table=inputs.block_tables[group][:decodes].contiguous(),
            context_lens=inputs.context_lens[:decodes].clamp(min=1),
            window_left=-1 if window is None else window - 1,
            chunks=chunks,
            prefill=self._prefills.get(group),
            no_padding=sum(query_lens) == len(inputs.positions),
        )

    def attend(self, query: Tensor, cache: LayerCache, metadata: Any, variant: AttentionVariant) -> Tensor:
        """Compute causal attention of queries [T, H, D] over their own sequences in the cache; return [T, H, D].

        The backend computes plain variants only.
        """
        allocate = torch.empty if metadata.no_padding else torch.zeros
        output = allocate(query.shape, dtype=query.dtype, device=query.device)
        if decodes := len(metadata.context_lens):
            _module("decode").xqa_batch_decode_with_kv_cache(
                query[:decodes].contiguous(),
                (cache.key, cache.value),
                self._workspace(query.device),
                metadata.block_table,
                metadata.context_lens,
                metadata.block_table.shape[1] * cache.key.shape[1],
                bmm1_scale=variant.scale,
                window_left=metadata.window_left,
                out=output[:decodes],
                kv_layout="NHD",
            )
        if metadata.chunks is not None:
            rows = slice(decodes, decodes + int(metadata.chunks.starts[-1]))
            prefill, chunks, window_left = metadata.prefill, metadata.chunks, metadata.window_left
            prefill.run(output[rows], query[rows], cache, chunks, window_left, variant.scale)
        return output

    def scratch_bytes(
        self, task: AttentionTask, group: KVGroupSpec, max_tokens: int, max_seqs: int, max_context: int
    ) -> int:
        """Return the bytes of XQA's workspace, prefill wrappers, block ids and a copy of the decodes' queries."""
        pages = 32 * min(max_seqs, max_tokens) * -(-max_context // _BLOCK_SIZES[0])
        queries = min(max_seqs, max_tokens) * task.num_heads * group.head_dim * task.dtype.itemsize
        return _XQA_BYTES + _GROUPS * _WRAPPER_BYTES + pages + queries

    def _workspace(self, device: torch.device) -> Tensor:
        """Return XQA's workspace at a fixed address; all layers share it, as they run one after another."""
        if device not in self._workspaces:
            self._workspaces[device] = torch.zeros(_XQA_BYTES, dtype=torch.uint8, device=device)
        return self._workspaces[device]


def why_not(device: torch.device, task: AttentionTask | None) -> str | None:
    """Return why this backend cannot be used on `device`, for `task` if it is given; None if it can."""
    if device.type != "cuda":
        return f"needs a GPU, and the device is {device.type}"
    return None if task is None else _why_not(task)


def _why_not(task: AttentionTask) -> str | None:
    known_heads = all(
        group.head_dim in _HEAD_DIMS and task.num_heads // group.num_kv_heads <= _LARGEST_GROUP for group in task.groups
    )
    known_types = task.kv_dtype == task.dtype in (torch.float16, torch.bfloat16)
    plain = task.plain and not task.latent
    if not (plain and known_heads and known_types and task.block_size in _BLOCK_SIZES):
        return (
            "it is for half precision, heads of 64, 128 or 256, blocks of 16 to 128; no latents, softcap, sinks, ALiBi"
        )
    try:
        _module("decode"), _module("prefill")
    except ModuleNotFoundError as error:
        return f"there is no module {error.name}"
    except Exception as error:  # noqa: BLE001  (its packages may not match each other, the driver or torch)
        return f"flashinfer cannot be imported: {error}"
    return None


def _module(name: str) -> Any:
    return importlib.import_module(f"flashinfer.{name}")


def _chunks(inputs: StepInputs, group: int, block_size: int, first: int) -> Chunks:
    """Return the sequences from `first` on as chunks; host lengths size the tensors, so there is no device sync."""
    contexts = inputs.context_lens_host[first:]
    counts = [-(-context // block_size) for context in contexts]
    page_starts = list(accumulate(counts, initial=0))
    table = inputs.block_tables[group][first:]
    held = -(-inputs.context_lens[first:].long() // block_size)
    owners = torch.repeat_interleave(held, output_size=page_starts[-1])
    columns = torch.arange(page_starts[-1], device=table.device) - (held.cumsum(0) - held)[owners]
    return Chunks(
        starts=torch.tensor(list(accumulate(inputs.query_lens_host[first:], initial=0)), dtype=torch.int32),
        page_starts=torch.tensor(page_starts, dtype=torch.int32),
        last_page_lens=torch.tensor([c - (n - 1) * block_size for c, n in zip(contexts, counts, strict=True)]).int(),
        pages=table[owners, columns],
    )
