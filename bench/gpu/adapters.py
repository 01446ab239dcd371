"""Measures decode steps whose sequences have different LoRA adapters, beside those of the same engine without."""

from __future__ import annotations

from collections.abc import Iterator

from bench.gpu import floors
from bench.gpu.adapter_files import write_adapter
from bench.gpu.busy import kernel_figures
from bench.gpu.context import Context
from bench.gpu.result import Figure, missing, timed
from bench.gpu.steps import Driver, TooLargeError, engine

_ADAPTERS, _RANK = 8, 16
_STD = 0.02
_BF16 = 2
_BASE, _ADAPTED = "without adapters", f"{_ADAPTERS} adapters of rank {_RANK}"


def adapters(context: Context) -> Iterator[Figure]:
    """Measure decode steps of the Llama shape with adapters of all linear layers, at the first context."""
    scale = context.scale
    name, modules = f"{scale.llama.name}-adapters", _linear_layers(context)
    files = [f"a{seed}={_written(context, modules, seed)}" for seed in range(_ADAPTERS)]
    settings = {"enable_lora": True, "lora_modules": files, "max_loras": _ADAPTERS, "max_lora_rank": _RANK}
    with engine(context.checkpoint(scale.llama), **context.settings, **settings) as loop:
        driver = Driver(loop, steps=scale.steps, rounds=scale.rounds)
        for batch in scale.adapter_batches:
            case = f"batch {batch}, context {scale.contexts[0]}"
            try:
                yield from _with_and_without(context, driver, batch, name, case, _num_bytes(modules))
            except TooLargeError as error:
                yield missing(name, "decode step", str(error), case)


def _linear_layers(context: Context) -> dict[str, tuple[int, int]]:
    """Return rows and columns of all linear layers by their names."""
    sizes = {name: size for name, size in context.scale.llama.tensors() if name.endswith("_proj.weight")}
    return {name.removesuffix(".weight"): (rows, columns) for name, (rows, columns) in sizes.items()}


def _num_bytes(modules: dict[str, tuple[int, int]]) -> int:
    """Return the bytes of an adapter."""
    return _BF16 * _RANK * sum(map(sum, modules.values()))


def _written(context: Context, modules: dict[str, tuple[int, int]], seed: int) -> str:
    folder = context.scratch / f"{context.scale.llama.name}-adapters" / str(seed)
    return str(write_adapter(modules, _RANK, folder, context.device, seed=seed, std=_STD))


def _with_and_without(
    context: Context, driver: Driver, batch: int, name: str, case: str, num_bytes: int
) -> Iterator[Figure]:
    """Measure the same batch of the base, then of adapters in turn, each of which a step reads once."""
    scale, steps = context.scale, {}
    digests = [each.digest for each in driver.loop.info.adapters]
    for how, given in ((_BASE, []), (_ADAPTED, digests)):
        driver.adapters = given
        steady = driver.decode(*(scale.contexts[0],) * batch, profile=True)
        floor = floors.decode(scale.llama, batch, round(steady.context), context.rates)
        read = min(batch, len(given)) * num_bytes / context.rates.read
        note = f"{floor.bound}-bound; {steady.context:.0f} tokens"
        steps[how] = timed(name, "decode step", f"{case}, {how}", steady.wall, floor.seconds + read, note)
        yield steps[how]
        yield from kernel_figures(name, f"{case}, {how}", steady, driver.steps)
    share = (steps[_BASE].value or 0.0) / (steps[_ADAPTED].value or 1.0)
    note = "predicted in bench/results/ROOFLINE.md, decode steps with adapters"
    yield Figure(model=name, what="tokens", case=case, unit="of the base's", value=share, rounds=1, note=note)
