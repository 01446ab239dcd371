"""A stand-in for the package `flashinfer`, which needs a GPU: the functions that we call, with its own arguments.

DECLARED says what flashinfer-python of VERSION declares in flashinfer/decode.py and flashinfer/prefill.py, so that a
call that it would refuse is refused here. What its documentation and kernels ask of tensors is asserted; the numbers
are PyTorch's, written so that XQA's part can be recorded as into a CUDA graph.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

VERSION = "0.7.2.post1"
DECLARED = {
    "xqa_batch_decode_with_kv_cache": (
        "query kv_cache workspace_buffer block_tables seq_lens max_seq_len bmm1_scale= bmm2_scale= window_left= out= "
        "sinks= kv_layout= enable_pdl= q_len_per_req= o_scale= mask= kv_cache_sf= q_cu_seq_lens="
    ),
    "__init__": (
        "float_workspace_buffer kv_layout= use_cuda_graph= qo_indptr_buf= paged_kv_indptr_buf= paged_kv_indices_buf= "
        "paged_kv_last_page_len_buf= custom_mask_buf= mask_indptr_buf= backend= jit_args= jit_kwargs= "
        "variant_owns_mask="
    ),
    "plan": (
        "qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads num_kv_heads head_dim_qk "
        "page_size head_dim_vo= custom_mask= packed_custom_mask= causal= pos_encoding_mode= use_fp16_qk_reduction= "
        "sm_scale= window_left= logits_soft_cap= rope_scale= rope_theta= q_data_type= kv_data_type= o_data_type= "
        "non_blocking= prefix_len_ptr= token_pos_in_items_ptr= token_pos_in_items_len= max_item_len_ptr= seq_lens= "
        "seq_lens_q= block_tables= max_token_per_sequence= max_sequence_kv= fixed_split_size= disable_split_kv= "
        "uniform_q_len="
    ),
    "run": (
        "q paged_kv_cache *args *q_scale= *k_scale= *v_scale= *out= *lse= *return_lse= *lse_base= *lse_layout= "
        "*enable_pdl= *window_left= *sinks= *kv_cache_sf= *skip_softmax_threshold_scale_factor= *use_fp16_softmax= "
        "*uses_spcompress="
    ),
}
"""Arguments in their order: `=` behind one that has a default, `*` before one that is given by name, or `*args`."""


def _parameter(declared: str) -> inspect.Parameter:
    name = declared.strip("*=")
    if declared == "*args":
        return inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL)
    by_name = declared.startswith("*")
    kind = inspect.Parameter.KEYWORD_ONLY if by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=None if declared.endswith("=") else inspect.Parameter.empty)


def given(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name; TypeError if the real function does not take them."""
    signature = inspect.Signature([_parameter(declared) for declared in DECLARED[function].split()])
    return dict(signature.bind(*args, **kwargs).arguments)


def _attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Queries [S, Q, H, D] over [S, L, K, D] where `seen` [S, Q, L]; nothing that is not seen is multiplied."""
    group = query.shape[2] // keys.shape[2]
    used = seen.any(1)[:, :, None, None]
    keys, values = (x.float().masked_fill(~used, 0).repeat_interleave(group, 2) for x in (keys, values))
    scores = torch.einsum("sqhd,slhd->shql", query.float(), keys) * scale
    weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return torch.einsum("shql,slhd->sqhd", weights, values)


def xqa_batch_decode_with_kv_cache(*args: Any, **kwargs: Any) -> Tensor:
    """One query token for each sequence, and no context is empty."""
    call = given("xqa_batch_decode_with_kv_cache", args, kwargs)
    query, (keys, values), table, lens = (call[n] for n in ("query", "kv_cache", "block_tables", "seq_lens"))
    assert call["kv_layout"] == "NHD" and isinstance(call["bmm1_scale"], float)
    assert query.is_contiguous() and keys.is_contiguous() and values.is_contiguous() and table.is_contiguous()
    assert query.dtype == keys.dtype in (torch.float16, torch.bfloat16)
    assert table.dtype == lens.dtype == torch.int32
    assert len(query) == len(table) == len(lens)
    assert keys.shape[1] in (16, 32, 64, 128) and query.shape[1] // keys.shape[2] <= 32
    assert call["max_seq_len"] == table.shape[1] * keys.shape[1]
    workspace = call["workspace_buffer"]
    assert workspace.dtype == torch.uint8 and len(workspace) > 8 << 20
    behind = lens[:, None] - 1 - torch.arange(call["max_seq_len"])
    seen = (behind >= 0) & ((behind <= call["window_left"]) | (call["window_left"] < 0))
    gathered = (cache[table.long()].flatten(1, 2) for cache in (keys, values))
    output = _attention(query[:, None], *gathered, seen[:, None], call["bmm1_scale"])[:, 0]
    # Without context it divides zero by zero.
    return call["out"].copy_(torch.where(lens[:, None, None] > 0, output, torch.nan))


class BatchPrefillWithPagedKVCacheWrapper:
    """Plans once, runs for many layers."""

    made: ClassVar[list[BatchPrefillWithPagedKVCacheWrapper]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        assert given("__init__", args, kwargs)["kv_layout"] == "NHD"
        self.plans: list[dict[str, Any]] = []
        self.made.append(self)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        call = given("plan", args, kwargs)
        starts, page_starts, pages, last = (
            call[name] for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        )
        assert starts.dtype == page_starts.dtype == pages.dtype == last.dtype == torch.int32
        assert len(pages) == int(page_starts[-1]) and len(last) == len(starts) - 1
        assert bool(((last >= 1) & (last <= call["page_size"])).all())
        assert call["causal"] and call["head_dim_qk"] in (64, 128, 256)
        self.plans.append(call)

    def run(self, *args: Any, **kwargs: Any) -> Tensor:
        """Chunk by chunk, with what was planned last."""
        call, plan = given("run", args, kwargs), self.plans[-1]
        query, (keys, values) = call["q"], call["paged_kv_cache"]
        assert query.shape[1:] == (plan["num_qo_heads"], plan["head_dim_qk"]) and query.stride(2) == 1
        assert keys.shape[1:] == (plan["page_size"], plan["num_kv_heads"], plan["head_dim_qk"])
        assert query.dtype == plan["q_data_type"] and keys.dtype == plan["kv_data_type"]
        assert len(query) == int(plan["qo_indptr"][-1])
        for chunk, last in enumerate(plan["paged_kv_last_page_len"].tolist()):
            first, end = plan["qo_indptr"][chunk : chunk + 2].tolist()
            pages = plan["paged_kv_indices"][slice(*plan["paged_kv_indptr"][chunk : chunk + 2].tolist())].long()
            length = (len(pages) - 1) * plan["page_size"] + last
            behind = torch.arange(length - (end - first), length)[:, None] - torch.arange(length)
            seen = (behind >= 0) & ((behind <= plan["window_left"]) | (plan["window_left"] < 0))
            gathered = (cache[pages].flatten(0, 1)[None, :length] for cache in (keys, values))
            call["out"][first:end] = _attention(query[None, first:end], *gathered, seen[None], plan["sm_scale"])[0]
        return call["out"]


def install(monkeypatch: Any) -> None:
    """Install the stand-in as if it were the package."""
    package, decode, prefill = (ModuleType(name) for name in ("flashinfer", "flashinfer.decode", "flashinfer.prefill"))
    package.__path__ = []  # type: ignore[attr-defined]
    decode.xqa_batch_decode_with_kv_cache = xqa_batch_decode_with_kv_cache  # type: ignore[attr-defined]
    prefill.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper  # type: ignore[attr-defined]
    for module in (package, decode, prefill):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(BatchPrefillWithPagedKVCacheWrapper, "made", [])
