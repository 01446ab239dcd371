"""Measures, once for each kind of CPU, up to how many tokens one way to multiply is quicker than another."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path as FilePath

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.build import kernel_cache
from octavo_engine.kernels.cpu.features import cpu_flags, cpu_model
from octavo_engine.kernels.cpu.library import CPUKernels
from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.paths import Path
from octavo_engine.model.layers.operations.products import (
    Product,
    by_tokens,
    kernel_product,
    torch_product,
    wide_product,
)

log = logging.getLogger(__name__)

Way = Callable[[Tensor], object]
"""A way to multiply x [T, in] with a weight; its result is not looked at."""

TOKENS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""The numbers of tokens that are measured."""
_ROWS, _COLUMNS, _GROUP = 2048, 1024, 64
"""The measured weight: larger than a core's own cache, as the weights of models are."""
_REPEATS = 3
"""The number of measurements, of which the shortest counts."""
_IN_A_ROW = 2
"""How many numbers of tokens in a row the first way has to be slower at, since one may be an outlier."""
_CLEARLY = 1.05
"""The factor by which the second way has to be quicker, so that equal ways are not chosen by chance."""


@functools.cache
def measured_crossovers(kernels: CPUKernels | None, path: Path, dtype: torch.dtype, *, quantized: bool) -> Crossovers:
    """Return the crossovers of this CPU for activations in `dtype`, measured if no earlier process has kept them.

    Only those are measured that `path` reads, and only for a model with `quantized` weights those of codes.
    """
    if path == "torch" or (path == "kernels" and not quantized):
        return Crossovers()
    folder = kernel_cache()
    file = None if folder is None else folder / _file_name(kernels, path, dtype, quantized=quantized)
    if file is not None and (kept := _read(file)) is not None:
        return kept
    start = time.perf_counter()
    found = measure(kernels, path, dtype, quantized=quantized)
    log.info(
        "measured in %.1f s which products are quickest on this CPU, in tokens: %s", time.perf_counter() - start, found
    )
    if file is not None:
        _write(file, found)
    return found


def measure(kernels: CPUKernels | None, path: Path, dtype: torch.dtype, *, quantized: bool) -> Crossovers:
    """Measure on one thread, by its CPU time, which other processes change little."""
    threads, found = torch.get_num_threads(), Crossovers()
    torch.set_num_threads(1)
    try:
        weight = torch.ones(_ROWS, _COLUMNS, dtype=dtype)
        wide = _times(wide_product, weight)
        if path == "torch in float32":
            found = replace(found, narrow=crossover(_times(torch_product, weight), wide, dtype))
        if kernels is None:
            return found
        product = kernel_product(kernels)
        if path == "kernels and float32":
            most = crossover(_times(product, weight), wide, dtype)
            found = replace(found, kernels=TOKENS[-1] if most is None else most)
            product = by_tokens(product, found.kernels, wide_product)
        if quantized:
            plain, interleaved = (
                _quantized_crossover(kernels, product, dtype, interleaved=each) for each in (False, True)
            )
            found = replace(found, codes=plain, interleaved=interleaved)
        return found
    finally:
        torch.set_num_threads(threads)


def crossover(few: Way, many: Way, dtype: torch.dtype) -> int | None:
    """Return the most of TOKENS up to which `few` is not clearly slower than `many`; None: it never is."""
    last = slower = 0
    for tokens in TOKENS:
        x = torch.ones(tokens, _COLUMNS, dtype=dtype)
        if _seconds(few, x) <= _CLEARLY * _seconds(many, x):
            last, slower = tokens, 0
            continue
        slower += 1
        if slower == _IN_A_ROW:
            return last
    return None if last == TOKENS[-1] else last


def _seconds(way: Way, x: Tensor) -> float:
    """Return the CPU seconds that this thread takes, in the shortest of some measurements."""
    found = []
    for _ in range(_REPEATS):
        start = time.thread_time()
        way(x)
        found.append(time.thread_time() - start)
    return min(found)


def _times(product: Product, weight: Tensor) -> Way:
    return lambda x: product(x, weight, None, None)


def _quantized_crossover(kernels: CPUKernels, product: Product, dtype: torch.dtype, *, interleaved: bool) -> int | None:
    codes = (torch.arange(_ROWS * _COLUMNS // 2) % 251).byte().view(_ROWS, -1)
    scale = torch.ones(_ROWS, _COLUMNS // _GROUP)
    weight = QuantizedWeight([QuantizedPart(codes=codes, scale=scale, bits=4, columns=_COLUMNS, group=_GROUP)])
    if interleaved:
        kernels.interleave(weight)
    return crossover(
        lambda x: kernels.quantized_linear(x, weight),
        lambda x: product(x, kernels.dequantize(weight, x.dtype), None, None),
        dtype,
    )


def _file_name(kernels: CPUKernels | None, path: Path, dtype: torch.dtype, *, quantized: bool) -> str:
    """Return the name of the file for these kernels on this CPU."""
    compiled = None if kernels is None else FilePath(kernels.library._name).name
    known = (cpu_model(), sorted(cpu_flags()), torch.__version__, compiled, str(dtype), path, quantized)
    return f"crossovers-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.json"


def _read(file: FilePath) -> Crossovers | None:
    """Return what an earlier process has kept; None if there is nothing, or not what this code writes."""
    try:
        found = Crossovers(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    known = all(most in (None, 0, *TOKENS) for most in asdict(found).values()) and found.kernels is not None
    return found if known else None


def _write(file: FilePath, found: Crossovers) -> None:
    partial = file.with_name(f".{os.getpid()}-{file.name}")
    with suppress(OSError):  # a full disk: measured again at the next start
        partial.write_text(json.dumps(asdict(found)))
        partial.replace(file)
