"""What a rank computes a model with: device, type, attention backend."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from octavo_engine.attention.backend import AttentionBackend, AttentionTask
from octavo_engine.attention.select import select_backend
from octavo_engine.config import EngineConfig
from octavo_engine.errors import ConfigurationError
from octavo_engine.model.footprint import linear_shapes
from octavo_engine.model.layers.fp8 import multiplies_fp8, suits_fp8
from octavo_engine.model.quantization import FP8, asked_for, check_blocks
from octavo_engine.model.shard import Shard, sharded
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec, read_spec


@dataclass(frozen=True)
class Target:
    """The same choice in every rank, each with its own device."""

    device: torch.device
    spec: ModelSpec
    """Of the whole model."""
    shard_spec: ModelSpec
    dtype: torch.dtype
    kv_dtype: torch.dtype
    """Of cached keys and values."""
    backend: AttentionBackend
    multiplies_fp8: bool
    """Whether the device multiplies all quantized weights in 8 bits as they are."""


def choose_target(config: EngineConfig, files: ModelFiles, shard: Shard, *, measure: bool = True) -> Target:
    """What `shard` of the model in `files` is computed with; ConfigurationError if it cannot be.

    Backends are tried on a GPU only if they are to be measured.
    """
    device = choose_device(config.device, shard)
    return _target(config, files, shard, device, fp8=multiplies_fp8(device), measure=measure)


def planned_target(config: EngineConfig, files: ModelFiles) -> Target:
    """What the first rank would be computed with on a GPU that need not be here, one that multiplies in 8 bits."""
    shard = Shard(0, config.tensor_parallel_size)
    return _target(replace(config, attention_backend="triton"), files, shard, torch.device("cuda"), fp8=True)


def _target(
    config: EngineConfig, files: ModelFiles, shard: Shard, device: torch.device, *, fp8: bool, measure: bool = False
) -> Target:
    spec = asked_for(read_spec(files), config.quantization)
    part = sharded(spec, shard)
    for rank in range(shard.size):  # they need not be alike
        check_blocks(sharded(spec, Shard(rank, shard.size)), shard.size)
    dtype = choose_dtype(config.dtype, spec, device)
    kv_dtype = choose_kv_dtype(config.kv_cache_dtype, dtype)
    task = AttentionTask(
        part.kv_groups, config.block_size, dtype, kv_dtype, part.num_heads, plain=not spec.attention_sinks
    )
    backend = select_backend(config.attention_backend, device, task, measure=measure)
    fp8 = fp8 and all(suits_fp8(dtype, *shape) for shape in linear_shapes(part))
    return Target(device, spec, part, dtype, kv_dtype, backend, fp8)


def choose_device(name: str, shard: Shard) -> torch.device:
    """`auto` is a GPU if there is one; each rank has its own."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigurationError("--device cuda: there is no CUDA GPU here; use --device cpu, or give the pod a GPU")
    if name == "cpu" or not available:
        return torch.device("cpu")
    if shard.size > (count := torch.cuda.device_count()):
        raise ConfigurationError(f"--tensor-parallel-size {shard.size}: there are only {count} GPUs here")
    return torch.device("cuda") if shard.size == 1 else torch.device("cuda", shard.rank)


def choose_dtype(name: str, spec: ModelSpec, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's type; half precision without bfloat16's range is left to those who ask for it."""
    if name == "auto":
        return torch.bfloat16 if spec.dtype in {torch.bfloat16, torch.float16} and device.type == "cpu" else spec.dtype
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


def choose_kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The type of cached keys and values: `auto` is that of activations, all other names are of e4m3."""
    return dtype if name == "auto" else FP8
