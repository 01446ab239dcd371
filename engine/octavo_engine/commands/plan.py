"""`octavo-engine plan`: an estimate of a model's memory, and whether it fits, from its config and headers alone."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from octavo_engine.commands.percent_bar import percent_bar
from octavo_engine.config import EngineConfig
from octavo_engine.config.setting import Setting
from octavo_engine.config.sources import read_engine_config
from octavo_engine.engine.startup.memory_plan_rows import plan_rows
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, resolve_for_estimate
from octavo_engine.engine.startup.sizing import memory_limits, memory_need, size_engine
from octavo_engine.errors import ConfigurationError, DoesNotFitError
from octavo_engine.kernels.gpu_limits import FP8_SINCE
from octavo_engine.model.gguf.file import headers_read_once
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed, MemoryPlan
from octavo_engine.runner.memory.plan_memory import plan_memory
from octavo_engine.sizes import format_size
from octavo_engine.text_table import table


@dataclass(frozen=True, slots=True)
class CommonGPU:
    """A GPU of the table."""

    gibibytes: float
    """Memory that CUDA programs can use, rounded down: a GPU sold with 80 GB has 79 GiB."""
    capability: tuple[int, int]
    """The compute capability, which decides how weights in FP8 are multiplied."""


COMMON_GPUS = {
    "L4": CommonGPU(22.0, (8, 9)),
    "A10G": CommonGPU(22.0, (8, 6)),
    "RTX 4090": CommonGPU(23.5, (8, 9)),
    "RTX 5090": CommonGPU(31.0, (12, 0)),
    "A100 40GB": CommonGPU(39.0, (8, 0)),
    "L40S": CommonGPU(44.0, (8, 9)),
    "A100 80GB": CommonGPU(79.0, (8, 0)),
    "H100": CommonGPU(79.0, (9, 0)),
    "H200": CommonGPU(139.0, (9, 0)),
    "B200": CommonGPU(178.0, (10, 0)),
}
_MOST_GPUS = 8
"""GPUs that one machine commonly has."""


@headers_read_once()
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
            "--gpu-memory is the memory of a GPU, and --device cpu plans for this machine's memory; omit one of the two"
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
    kind = " that multiply in FP8" if resolved.multiplies_fp8 else ""
    on = f"{ranks} GPU{'s' * (ranks > 1)}{kind}" + "; the figures below are for each" * (ranks > 1)
    sys.stdout.write(table(plan_rows(config, files, resolved, plan, on)))
    return 0


def on_common_gpus(config: EngineConfig, files: ModelFiles) -> str:
    """Return a table with a row for each common GPU; the last GPU's DoesNotFitError if the model fits on none."""
    rows: list[tuple[str, ...]] = [("GPU", "memory", "GPUs", "weights", "KV cache", "context", "sequences")]
    refused: DoesNotFitError | None = None

    needs = _Needs(config, files)
    for name, gpu in COMMON_GPUS.items():
        size = int(gpu.gibibytes * 2**30)
        try:
            ranks, plan = _fewest(functools.partial(needs.on, gpu), config.tensor_parallel_size, size)
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
        "weights and KV cache are for each GPU; sequences: of full context at a time; GPUs: --tensor-parallel-size",
        *needs.notes(),
        "for this machine's CPU and memory: add --device cpu",
    )
    return "\n".join([*lines, *legend]) + "\n"


class _Needs:
    """What a rank needs, computed once for each number of ranks: for thousands of layers it takes seconds."""

    def __init__(self, config: EngineConfig, files: ModelFiles) -> None:
        self._config, self._files = config, files
        self.resolved, self._needed = functools.cache(self._resolve), functools.cache(self._need)

    def on(self, gpu: CommonGPU, ranks: int) -> tuple[MemoryNeed, MemoryLimits]:
        """Return the memory that a rank needs on such a GPU, which matters only for weights that are in FP8."""
        return self._needed(ranks, gpu.capability >= FP8_SINCE or not self.resolved(ranks, True).multiplies_fp8)

    def notes(self) -> list[str]:
        """Return a line about GPUs that do not multiply in FP8, if the model would."""
        if not self.resolved(self._config.tensor_parallel_size, True).multiplies_fp8:
            return []
        others = ", ".join(name for name, gpu in COMMON_GPUS.items() if gpu.capability < FP8_SINCE)
        return [f"keep the weights in FP8, but multiply in 16 bits: {others}"]

    def _resolve(self, ranks: int, fp8_products: bool) -> ResolvedConfig:
        config = replace(self._config, tensor_parallel_size=ranks)
        return resolve_for_estimate(config, self._files, fp8_products=fp8_products)

    def _need(self, ranks: int, fp8_products: bool) -> tuple[MemoryNeed, MemoryLimits]:
        config, resolved = replace(self._config, tensor_parallel_size=ranks), self.resolved(ranks, fp8_products)
        return memory_need(resolved, config), memory_limits(config, resolved)


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
