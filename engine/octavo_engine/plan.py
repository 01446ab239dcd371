"""`octavo-engine plan`: what a model needs and whether it fits, from its config and headers alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import torch

from octavo_engine.attention.select import select_backend
from octavo_engine.cli_config import read_engine_config
from octavo_engine.config import EngineConfig, Setting, format_size
from octavo_engine.engine.startup import choose_dtype, memory_limits, memory_need
from octavo_engine.model.footprint import checkpoint_bytes
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.model.spec import ModelSpec, read_spec
from octavo_engine.percent_bar import percent_bar
from octavo_engine.runner.memory import DeviceMemory, MemoryNeed, MemoryPlan, plan_memory


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the plan; DoesNotFitError (exit 4) with the knob to turn if there is none."""
    size: int = Setting("size", "", minimum=1).parse("gpu-memory", args.gpu_memory)
    ranks = Setting("int", "", minimum=1, maximum=64).parse("tensor-parallel-size", args.tensor_parallel_size or "1")
    args.tensor_parallel_size = None  # a plan is arithmetic: it may look further than this version can run
    config = read_engine_config(args, environ)
    with percent_bar(f"pulling {config.model}") as progress:
        files = resolve_model(config.model, config.revision, progress, weights=False)
    spec = read_spec(files)
    plan = make_plan(config, spec, size, ranks)
    sys.stdout.write(_table(config, files, spec, plan, ranks))
    return 0


def make_plan(config: EngineConfig, spec: ModelSpec, gpu_memory: int, ranks: int = 1) -> MemoryPlan:
    """The memory plan on each of `ranks` GPUs of `gpu_memory` bytes that nobody else uses.

    Weights and KV heads are split among the ranks (no further than there are heads), a step's activations are not.
    """
    device = torch.device("cuda")
    whole = memory_need(spec, choose_dtype(config.dtype, spec, device), config, select_backend("triton", device))
    heads = min(ranks, *(group.num_kv_heads for group in spec.kv_groups))
    need = MemoryNeed(-(-whole.weights // ranks), whole.step, -(-whole.kv_per_token // heads))
    memory = DeviceMemory(gpu_memory, gpu_memory, f"a GPU of {format_size(gpu_memory)}")
    limits = memory_limits(config, spec, device)
    return plan_memory(need, memory, limits)


def _table(config: EngineConfig, files: ModelFiles, spec: ModelSpec, plan: MemoryPlan, ranks: int) -> str:
    need, stored = plan.need, checkpoint_bytes(files)
    rows = [
        ("model", f"{config.model} ({spec.architecture}, {spec.num_layers} layers)"),
        ("checkpoint", "weights not here yet" if stored is None else format_size(stored)),
        ("on", f"{ranks} GPU{'s' * (ranks > 1)}; what follows is for each"),
        ("weights", format_size(need.weights)),
        ("one step", f"{format_size(need.step)} at --max-num-batched-tokens {config.max_num_batched_tokens}"),
        ("KV cache", f"{format_size(plan.kv_bytes)} in {plan.num_kv_blocks:,} blocks of {plan.block_size} tokens"),
        ("KV per token", format_size(need.kv_per_token)),
        ("context", f"{plan.max_model_len:,} tokens (--max-model-len)"),
        ("sequences", f"{plan.kv_tokens / plan.max_model_len:.1f} of full length at a time"),
        ("fits", f"yes, into {format_size(plan.budget)} (--gpu-memory-utilization {config.gpu_memory_utilization:g})"),
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)
