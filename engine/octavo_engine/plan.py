"""`octavo-engine plan`: what a model needs and whether it fits, from its config and headers alone; and `pull`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from tqdm import tqdm

from octavo_engine.cli_config import read_engine_config
from octavo_engine.config import EngineConfig, Setting, format_size
from octavo_engine.engine.startup import choose_device, choose_dtype, memory_limits, memory_need
from octavo_engine.errors import ConfigurationError
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.model.spec import ModelSpec, read_spec
from octavo_engine.runner.memory import DeviceMemory, MemoryPlan, plan_memory


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the plan; DoesNotFitError (exit 4) with the knob to turn if there is none."""
    config = read_engine_config(args, environ)
    size: int = Setting("size", "", minimum=1).parse("gpu-memory", args.gpu_memory)
    spec = read_spec(fetch(config.model, config.revision))
    plan = make_plan(config, spec, size)
    sys.stdout.write(_table(config, spec, plan))
    return 0


def make_plan(config: EngineConfig, spec: ModelSpec, gpu_memory: int) -> MemoryPlan:
    """The memory plan on one GPU of `gpu_memory` bytes that nobody else uses."""
    device = choose_device("cpu")
    need = memory_need(spec, choose_dtype(config.dtype, spec, device), config)
    memory = DeviceMemory(gpu_memory, gpu_memory, f"a GPU of {format_size(gpu_memory)}")
    limits = memory_limits(config, spec, device)
    return plan_memory(need, memory, limits)


def _table(config: EngineConfig, spec: ModelSpec, plan: MemoryPlan) -> str:
    need = plan.need
    rows = [
        ("model", f"{config.model} ({spec.architecture}, {spec.num_layers} layers)"),
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


def fetch(model: str, revision: str | None) -> ModelFiles:
    """The model's files, pulled under a progress bar if they are not here."""
    with tqdm(total=100, unit="%", desc=f"pulling {model}", leave=False, disable=None) as bar:

        def progress(phase: str, ratio: float, detail: str) -> None:  # noqa: ARG001
            bar.set_postfix_str(detail, refresh=False)
            bar.update(int(ratio * 100) - bar.n)

        return resolve_model(model, revision, progress)


def pull(model: str, revision: str | None) -> int:
    """Download a model and say where it is."""
    files = fetch(model, revision)
    place = files.directory or files.gguf
    if place is None:
        raise ConfigurationError(f"{model} names no files")
    sys.stdout.write(f"{place}\n")
    return 0
