"""`octavo-engine plan`: an estimate of a model's memory, and whether it fits, from its config and headers alone."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from octavo_engine.commands.percent_bar import percent_bar
from octavo_engine.config import EngineConfig
from octavo_engine.config.setting import Setting
from octavo_engine.config.sources import read_engine_config
from octavo_engine.engine.startup.memory_plan_rows import plan_rows
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, resolve_for_estimate
from octavo_engine.engine.startup.sizing import memory_limits, memory_need, size_engine
from octavo_engine.errors import ConfigurationError, DoesNotFitError
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed, MemoryPlan
from octavo_engine.runner.memory.plan_memory import plan_memory
from octavo_engine.sizes import format_size
from octavo_engine.text_table import table

COMMON_GPUS = {
    "L4": 22.0,
    "A10G": 22.0,
    "RTX 4090": 23.5,
    "RTX 5090": 31.0,
    "A100 40GB": 39.0,
    "L40S": 44.0,
    "A100 80GB": 79.0,
    "H100": 79.0,
    "H200": 139.0,
    "B200": 178.0,
}
"""GiB of memory that CUDA programs can use, rounded down: a GPU sold with 80 GB has 79 GiB."""
_MOST_GPUS = 8
"""GPUs that one machine commonly has."""


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the memory plan; DoesNotFitError (exit 4), which names the flag to change, if the model does not fit.

    With `--device cpu` the plan is for this machine's memory. Without that and --gpu-memory: print how many of each
    common GPU the model needs; exit 4 if eight of any are too few.
    """
    given: str | None = args.gpu_memory
    size: int = 0 if given is None else Setting("size", "", minimum=1).parse("gpu-memory", given)
    if given is not None and size < 1 << 20:
        raise ConfigurationError(f"--gpu-memory {given} is {format_size(size)}; give a unit, as in 80GiB")
    config = read_engine_config(args, environ)
    if size and config.device == "cpu":
        raise ConfigurationError(
            "--gpu-memory is a GPU's, and --device cpu plans for the memory of this machine; leave one of them out"
        )
    with percent_bar(f"pulling {config.model}") as progress:
        files = resolve_model(config.model, config.revision, progress, weights=False)
    if config.device == "cpu":
        here = size_engine(config, files)
        on = here.describe_device(config.tensor_parallel_size)
        sys.stdout.write(table(plan_rows(config, files, here.resolved, here.plan, on)))
        return 0
    if not size:
        sys.stdout.write(on_common_gpus(config, files))
        return 0
    resolved = resolve_for_estimate(config, files)
    plan = make_plan(config, resolved, size)
    ranks = config.tensor_parallel_size
    on = f"{ranks} GPU{'s' * (ranks > 1)}; what follows is for each"
    sys.stdout.write(table(plan_rows(config, files, resolved, plan, on)))
    return 0


def on_common_gpus(config: EngineConfig, files: ModelFiles) -> str:
    """Return a table with a row for each common GPU; the last GPU's DoesNotFitError if the model fits on none."""
    rows: list[tuple[str, ...]] = [("GPU", "memory", "GPUs", "weights", "KV cache", "context", "sequences")]
    refused: DoesNotFitError | None = None

    @functools.cache  # a rank's need does not depend on the GPU, and takes seconds to compute for thousands of layers
    def on(ranks: int) -> tuple[MemoryNeed, MemoryLimits]:
        several = replace(config, tensor_parallel_size=ranks)
        resolved = resolve_for_estimate(several, files)
        return memory_need(resolved, several), memory_limits(several, resolved)

    for name, gibibytes in COMMON_GPUS.items():
        size = int(gibibytes * 2**30)
        try:
            ranks, plan = _fewest(on, config.tensor_parallel_size, size)
        except DoesNotFitError as error:
            refused = error
            rows.append((name, format_size(size), f"more than {_MOST_GPUS}", "-", "-", "-", "-"))
            continue
        each = (format_size(plan.need.weights), format_size(plan.kv_bytes), f"{plan.max_model_len:,}")
        rows.append((name, format_size(size), str(ranks), *each, f"{plan.full_sequences:,}"))
    if refused and all(row[3] == "-" for row in rows[1:]):
        raise refused
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    legend = (
        "weights and KV cache are for each GPU; sequences: of full context at a time; GPUs: --tensor-parallel-size\n"
        "for this machine's CPU and memory: add --device cpu"
    )
    return "\n".join([*lines, legend]) + "\n"


def _fewest(on: Callable[[int], tuple[MemoryNeed, MemoryLimits]], ranks: int, size: int) -> tuple[int, MemoryPlan]:
    """Return the fewest GPUs of `size` bytes on which the model fits, and its memory plan there.

    The number is `ranks`, doubled until the model fits; DoesNotFitError if more than _MOST_GPUS were needed.
    """
    while True:
        try:
            return ranks, _plan_on(*on(ranks), size)
        except DoesNotFitError:
            if ranks * 2 > _MOST_GPUS:
                raise
        ranks *= 2


def make_plan(config: EngineConfig, resolved: ResolvedConfig, gpu_memory: int) -> MemoryPlan:
    """Return the memory plan of each of --tensor-parallel-size GPUs with `gpu_memory` bytes, all of them free."""
    return _plan_on(memory_need(resolved, config), memory_limits(config, resolved), gpu_memory)


def _plan_on(need: MemoryNeed, limits: MemoryLimits, gpu_memory: int) -> MemoryPlan:
    memory = DeviceMemory(gpu_memory, gpu_memory, f"a GPU of {format_size(gpu_memory)}")
    return plan_memory(need, memory, limits)
