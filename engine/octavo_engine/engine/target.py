"""What a rank computes a model with: device, type, attention backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.attention.backend import AttentionBackend, AttentionTask
from octavo_engine.attention.select import select_backend
from octavo_engine.config import EngineConfig
from octavo_engine.errors import ConfigurationError
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
    backend: AttentionBackend


def choose_target(config: EngineConfig, files: ModelFiles, shard: Shard) -> Target:
    """What `shard` of the model in `files` is computed with; ConfigurationError if it cannot be."""
    device = choose_device(config.device, shard)
    spec = read_spec(files)
    part = sharded(spec, shard)
    dtype = choose_dtype(config.dtype, spec, device)
    task = AttentionTask(part.kv_groups, config.block_size, dtype, part.num_heads)
    backend = select_backend(config.attention_backend, device, task)
    return Target(device, spec, part, dtype, backend)


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
