"""The setup of a worker for a spec, and its warm-up."""

from __future__ import annotations

import torch

from octavo_engine.attention.backend import AttentionBackend
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup import warm_up
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, attention_task, make_blueprint
from octavo_engine.engine.startup.worker_setup import WorkerSetup
from octavo_engine.model.source import resolve_model
from octavo_engine.model.spec import ModelSpec
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.memory.memory_plan import MemoryPlan
from octavo_engine.runner.worker import Worker


def resolved_of(spec: ModelSpec, device: torch.device, backend: AttentionBackend, seqs: int = 256) -> ResolvedConfig:
    blueprint = make_blueprint(spec, torch.float32, Shard())
    return ResolvedConfig(device, spec, blueprint, attention_task(blueprint, 16, torch.float32), backend, seqs, seqs)


def setup_of(
    spec: ModelSpec, device: str, backend: AttentionBackend, plan: MemoryPlan, **settings: object
) -> WorkerSetup:
    config = EngineConfig(model="x", **settings)  # type: ignore[arg-type]
    where = resolved_of(spec, torch.device(device), backend, config.max_num_seqs or 256)
    return WorkerSetup(config, resolve_model, where, plan, Shard(1, 2))  # type: ignore[arg-type]


def run_warm_up(worker: Worker, setup: WorkerSetup, plan: MemoryPlan) -> None:
    warm_up.warm_up(worker, setup.config, setup.resolved, plan)
