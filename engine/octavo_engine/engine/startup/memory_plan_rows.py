"""The memory plan as rows of text: `octavo-engine plan` prints them, and so does `serve` on a terminal."""

from __future__ import annotations

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import ResolvedConfig
from octavo_engine.model.footprint import checkpoint_bytes
from octavo_engine.model.quantization.e4m3 import FP8
from octavo_engine.model.source import ModelFiles
from octavo_engine.runner.memory.memory_plan import MemoryPlan
from octavo_engine.sizes import format_size
from octavo_engine.text_table import Rows


def plan_rows(config: EngineConfig, files: ModelFiles, resolved: ResolvedConfig, plan: MemoryPlan, on: str) -> Rows:
    """Return the plan as pairs of a name and a value; `on` describes the device that the sizes are for."""
    need, stored, spec = plan.need, checkpoint_bytes(files), resolved.spec
    experts = ", experts dequantized" if any(each.dequantized_from() for each in resolved.blueprint.mixtures()) else ""
    quantized = "" if spec.quantization is None else f" (linear layers in {spec.quantization.name}{experts})"
    cached = " (fp8)" if resolved.kv_dtype == FP8 else ""
    graphs = f"about {format_size(need.graphs)}" if need.graphs else "none (--enforce-eager)"
    return [
        ("model", f"{config.model} ({spec.architecture}, {spec.num_layers} layers)"),
        ("checkpoint", "weights not downloaded yet" if stored is None else format_size(stored)),
        ("on", on),
        ("weights", format_size(need.weights) + quantized),
        ("one step", f"{format_size(need.step)} at --max-num-batched-tokens {config.max_num_batched_tokens}"),
        *([("CUDA graphs", graphs)] * (resolved.device.type != "cpu")),
        *(
            [("adapters", f"{format_size(need.adapters)} for {config.max_loras} of rank {config.max_lora_rank}")]
            * bool(need.adapters)
        ),
        *_cache_rows(plan, format_size(need.kv_per_token) + cached, causal=spec.causal),
        *(
            (f"windows of {w.window:,}", f"{plan.blocks_of(w.window):,} blocks, {format_size(w.kv_per_token)} a token")
            for w in need.windows
        ),
        *((("states", f"{plan.blocks_of(None, states=True):,} of {format_size(need.state)}"),) if need.state else ()),
        ("context", _context(config, resolved, plan)),
        ("sequences", f"{plan.full_sequences:,} of full length at a time"),
        ("fits", f"yes, into {format_size(plan.budget)} (--gpu-memory-utilization {config.gpu_memory_utilization:g})"),
    ]


def short_context(config: EngineConfig, resolved: ResolvedConfig, plan: MemoryPlan) -> str:
    """Return a sentence if the context is shorter than the model's because the KV cache holds no more, else ""."""
    longest = resolved.longest_context(config)
    if config.max_model_len is not None or plan.max_model_len >= longest:
        return ""
    full = format_size(plan.shares.bytes(-(-longest // plan.block_size)))
    knob = _larger_cache(config, resolved)
    return (
        f"the context is {plan.max_model_len:,} of the model's {longest:,} tokens, since the KV cache of "
        f"{format_size(plan.kv_bytes)} holds no more; for all of them it needs {full}: {knob}"
    )


def _larger_cache(config: EngineConfig, resolved: ResolvedConfig) -> str:
    if config.num_kv_blocks is not None:
        return "raise --num-kv-blocks"
    if config.kv_cache_memory is not None or resolved.device.type == "cpu":
        return "raise --kv-cache-memory"
    return "raise --gpu-memory-utilization, or use larger GPUs"


def _context(config: EngineConfig, resolved: ResolvedConfig, plan: MemoryPlan) -> str:
    if not short_context(config, resolved, plan):
        return f"{plan.max_model_len:,} tokens (--max-model-len)"
    return f"{plan.max_model_len:,} of the model's {resolved.longest_context(config):,} tokens: no more fit"


def _cache_rows(plan: MemoryPlan, kv_per_token: str, *, causal: bool) -> Rows:
    if not causal:
        return [("KV cache", "none: a prompt is computed whole, in one step")]
    blocks = f"{format_size(plan.kv_bytes)} in {plan.num_kv_blocks:,} blocks of {plan.block_size} tokens"
    return [("KV cache", blocks), ("KV per token", kv_per_token)]
