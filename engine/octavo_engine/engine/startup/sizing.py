"""The size of an engine: plans the memory of a model on this machine, without reading the model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo_engine.config import EngineConfig
from octavo_engine.engine.info import MemoryInfo
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, resolve_config
from octavo_engine.errors import ConfigurationError
from octavo_engine.model import footprint
from octavo_engine.model.lora.slots import lora_bytes, lora_step_bytes, lora_targets
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.graphs import ladder, mixed_sequences
from octavo_engine.runner.memory.device_memory import DeviceMemory, device_memory, host_memory
from octavo_engine.runner.memory.kv_blocks import WindowNeed
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed, MemoryPlan
from octavo_engine.runner.memory.plan_memory import check_swap_space, plan_memory
from octavo_engine.runner.sampling.sampler import MOST_TOGETHER
from octavo_engine.sizes import format_size


@dataclass(frozen=True)
class Sizing:
    """The memory plan of a model on this machine, for each rank, made without reading the weights."""

    resolved: ResolvedConfig
    plan: MemoryPlan
    memory: DeviceMemory
    limits: MemoryLimits

    def replan(self, graphs: int) -> MemoryPlan:
        """Return the plan for CUDA graphs of `graphs` bytes, as measured; raises DoesNotFitError if nothing fits."""
        return plan_memory(replace(self.plan.need, graphs=graphs), self.memory, self.limits)

    def describe_device(self, ranks: int) -> str:
        """Return the device and its memory, as one line of the printed plan."""
        memory, each = self.memory, "" if ranks == 1 else f"; the figures below are for each of {ranks}"
        return f"{memory.name}, {format_size(memory.free)} of {format_size(memory.total)} free{each}"

    def memory_info(self) -> MemoryInfo:
        """Return the plan's numbers for /health/startup; one sequence's windows and states are part of `step`."""
        plan, need = self.plan, self.plan.need
        step = need.step + need.graphs + replace(plan.shares, window_seqs=1).bytes_of_running(plan.num_kv_blocks)
        return MemoryInfo(weights=need.weights, step=step, kv_per_token=need.kv_per_token, total=self.memory.total)


def size_engine(
    config: EngineConfig, files: ModelFiles, others: Sequence[DeviceMemory] = (), *, measure: bool = True
) -> Sizing:
    """Plan the memory of an engine with these settings; raises DoesNotFitError, which names the setting to change.

    `others` are the devices of the other ranks, if they are known: the device with the least usable memory decides for
    all. With `measure` the attention backends are timed on the GPU, which an engine that is about to start needs.
    """
    ranks = config.tensor_parallel_size
    resolved = resolve_config(config, files, Shard(0, ranks), measure=measure)
    device = resolved.device
    need = memory_need(resolved, config)
    limits = memory_limits(config, resolved)
    memory = min((device_memory(device), *others), key=lambda memory: memory.budget(limits.utilization))
    if device.type == "cpu":  # the ranks share the machine's memory
        memory = memory.share(ranks)
    plan = plan_memory(need, memory, limits)
    if device.type != "cpu":
        check_swap_space(plan, host_memory().share(ranks))
    return Sizing(resolved, plan, memory, limits)


def memory_need(resolved: ResolvedConfig, config: EngineConfig) -> MemoryNeed:
    """Return the memory that the model takes on rank 0 with these settings.

    `step` is the peak of one step, the tables that all steps keep, and on a CPU what the process itself grows by. No
    other rank takes more: rank 0 has its part of the logits and then all of them, from which it samples.
    """
    blueprint, groups = resolved.blueprint, resolved.kv_groups
    length = config.max_model_len or resolved.longest_context(config)
    slots, adapters_step = _adapter_bytes(resolved, config)
    peak = max(_forward_bytes(resolved, config, length), _sampling_bytes(resolved)) + adapters_step
    peak += footprint.process_bytes(resolved.device, from_gguf=resolved.from_gguf)
    table = footprint.state_table_bytes(
        resolved.max_num_seqs, resolved.max_sampled, length, config.block_size, len(groups)
    )
    state = sum(group.state_bytes(resolved.dtype) for group in groups)
    return MemoryNeed(
        footprint.weight_bytes(blueprint),
        peak + table + state,  # `state` for the dummy state that padded rows write
        footprint.kv_bytes_per_token(groups, resolved.kv_dtype, config.block_size),
        _graph_bytes(resolved, config, length),
        tuple(
            WindowNeed(group.window, group.bytes_per_token(resolved.kv_dtype, config.block_size))
            for group in groups
            if group.window is not None
        ),
        state,
        slots,
    )


def _forward_bytes(resolved: ResolvedConfig, config: EngineConfig, length: int) -> int:
    """Return the peak of a forward pass with as many tokens and rows as a step may have."""
    blueprint, device = resolved.blueprint, resolved.device
    tokens, seqs = config.max_num_batched_tokens, resolved.max_sampled
    fused = not config.enable_lora and footprint.is_fused(blueprint, device, resolved.backend.name)
    scratch = _scratch_bytes(resolved, length, tokens, seqs)
    step = footprint.step_bytes(blueprint, tokens, seqs, scratch, fused=fused)
    return step + footprint.compute_bytes(blueprint, device, tokens)


def _scratch_bytes(resolved: ResolvedConfig, length: int, tokens: int, seqs: int) -> int:
    """Return the temporary memory of attention, and of the module that needs most beside it."""
    blueprint = resolved.blueprint
    module = footprint.module_scratch_bytes(blueprint)
    if not resolved.spec.causal:
        return footprint.bidirectional_bytes(blueprint, tokens, length) + module
    attention = [
        resolved.backend.scratch_bytes(resolved.task, group, tokens, seqs, length)
        for group in resolved.kv_groups
        if group.for_backend
    ]
    return max(*attention, footprint.compressed_attention_bytes(blueprint, tokens, length), 0) + module


def _sampling_bytes(resolved: ResolvedConfig) -> int:
    """Return the peak of sampling: logits, and the sampler's copies of them."""
    spec, seqs = resolved.spec, resolved.max_sampled
    vocabulary = 1 if spec.head is None else spec.vocab_size
    logits = footprint.logits_bytes(spec.hidden_size, vocabulary, resolved.dtype, seqs)
    return logits + footprint.sampler_bytes(vocabulary, min(seqs, MOST_TOGETHER))


def _graph_bytes(resolved: ResolvedConfig, config: EngineConfig, length: int) -> int:
    """Return an estimate of the memory of CUDA graphs, which is measured once they are captured."""
    if not resolved.uses_graphs(config):
        return 0
    decodes, mixed = ladder(resolved.max_sampled), resolved.mixed_graphs(config)
    rooms = [sum(mixed_sequences(decodes[-1], resolved.max_num_seqs, size)) for size in mixed]
    sizes = footprint.GraphSizes(
        graphs=len(decodes) + len(mixed),
        tokens=max([decodes[-1], *mixed]),
        sequences=max([decodes[-1], *rooms]),
    )
    scratch = _scratch_bytes(resolved, length, sizes.tokens, sizes.sequences)
    return footprint.graph_bytes(resolved.blueprint, sizes, length, config.block_size, scratch)


def _adapter_bytes(resolved: ResolvedConfig, config: EngineConfig) -> tuple[int, int]:
    """Return the bytes that adapters take permanently, and those that they take during a step.

    On a CPU the adapters of --max-cpu-loras count too, as they take the same memory.
    """
    if not config.enable_lora:
        return 0, 0
    device, rank = resolved.device, config.max_lora_rank
    choice = lora_targets(resolved.blueprint, device, num_slots=config.max_loras, wanted=config.lora_target_modules)
    targets = choice.targets
    held = lora_bytes(targets, config.max_loras, rank, device)
    if device.type == "cpu":
        held += lora_bytes(targets, config.cpu_loras, rank, device, as_files=True)
    return held, lora_step_bytes(targets, config.max_num_batched_tokens, rank, device)


def memory_limits(config: EngineConfig, resolved: ResolvedConfig) -> MemoryLimits:
    """Return the limits that the memory plan keeps; ConfigurationError if --max-model-len is above the model's."""
    spec = resolved.spec
    if config.max_model_len is not None and config.max_model_len > resolved.longest_context(config) < spec.max_position:
        raise ConfigurationError(
            f"--max-model-len {config.max_model_len}: {spec.architecture} computes a prompt in one step of at most "
            f"{config.max_num_batched_tokens} tokens; raise --max-num-batched-tokens or lower --max-model-len"
        )
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise ConfigurationError(
            f"--max-model-len {config.max_model_len} is above the {spec.max_position} tokens that the model was made "
            f"for; lower it to {spec.max_position}"
        )
    return MemoryLimits(
        utilization=config.gpu_memory_utilization,
        block_size=config.block_size,
        max_num_seqs=resolved.max_num_seqs,
        model_max_len=resolved.longest_context(config),
        max_model_len=config.max_model_len,
        kv_cache_memory=config.kv_cache_memory,
        num_kv_blocks=config.num_kv_blocks,
        swap_space=config.swap_space,
        on_cpu=resolved.device.type == "cpu",
        max_num_batched_tokens=config.max_num_batched_tokens,
        mixture=spec.has_experts,
        prefix_caching=config.enable_prefix_caching and not resolved.whole_prompts,
        causal=spec.causal,
    )
