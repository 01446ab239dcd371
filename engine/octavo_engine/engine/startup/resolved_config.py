"""The resolved configuration of one rank, without any `auto`: device, dtype, the model's spec, attention backend."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from octavo_engine.attention.backend import AttentionBackend, AttentionTask, KVGroupSpec
from octavo_engine.attention.select import select_backend
from octavo_engine.config import EngineConfig
from octavo_engine.core.settings import LongContext
from octavo_engine.engine.info import COMPUTED_POOLINGS
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.kernels.gpu_limits import OLDEST, capability
from octavo_engine.model.alignment import check_alignment, check_experts_stay
from octavo_engine.model.configuration.gguf_blocks import quantized
from octavo_engine.model.configuration.pooling import PoolingConfig, pooling_of
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.configuration.short_contexts import for_contexts, needs_whole_prompts
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.embeddings.dense_modules import DenseModules
from octavo_engine.model.layers.operations.choose_compute import planned_compute
from octavo_engine.model.layers.operations.device_support import device_support
from octavo_engine.model.quantization.e4m3 import FP8, multiplies_fp8
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec
from octavo_engine.model.tensor_parallel.collectives import Collectives
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.cores import usable_cores
from octavo_engine.runner.graphs import mixed_ladder, uses_graphs, uses_mixed_graphs

log = logging.getLogger(__name__)

_MOST_SEQS, _SEQS_OF_A_CORE = 256, 24
"""The defaults of --max-num-seqs: in all, and for each core of a CPU. On two cores SmolLM2 gives fewer tokens a second
with 256 requests in a step than with 48."""
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ResolvedConfig:
    """The resolved options with which a rank computes the model; they differ between ranks only in the device."""

    device: torch.device
    spec: ModelSpec
    blueprint: Decoder
    """This rank's part of the model on torch's `meta` device, without memory; the memory plan counts its tensors."""
    task: AttentionTask
    """What this rank's attention layers compute."""
    backend: AttentionBackend
    max_num_seqs: int
    """The most requests in one step."""
    max_sampled: int
    """The most tokens that one step samples: one for each request, and one after each of its draft tokens."""
    from_gguf: bool = False
    """Whether the weights come from a GGUF file."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        return self.blueprint.dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        """The dtype of cached keys and values."""
        return self.task.kv_dtype

    @property
    def multiplies_fp8(self) -> bool:
        """True if some products are in e4m3."""
        return any(linear.weights.in_8_bits for linear in self.blueprint.linears())

    @property
    def keeps_fp8(self) -> bool:
        """True if weights of linear layers stay in e4m3."""
        return any(linear.weights.weight.dtype == FP8 for linear in self.blueprint.linears())

    @cached_property
    def whole_prompts(self) -> bool:
        """True if prompts have to be computed in one step, without the prefix cache."""
        return needs_whole_prompts(self.spec)

    def longest_context(self, config: EngineConfig) -> int:
        """Return the longest context in tokens; prompts that must be computed in one step have to fit into it."""
        longest = self.spec.max_position
        return min(longest, config.max_num_batched_tokens) if self.whole_prompts else longest

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """The groups of layers that share block tables, with this rank's heads."""
        return self.blueprint.kv_groups

    def uses_graphs(self, config: EngineConfig) -> bool:
        """Return True if steps run as CUDA graphs. A model that does not generate has none."""
        return self.spec.head is not None and uses_graphs(config, self.device, self.backend)

    def mixed_graphs(self, config: EngineConfig) -> list[int]:
        """Return the numbers of tokens of steps with prompts that run as CUDA graphs, ascending; [] if none does."""
        if not (self.uses_graphs(config) and uses_mixed_graphs(config, self.backend, self.kv_groups)):
            return []
        return mixed_ladder(config.max_num_batched_tokens)


def resolve_config(config: EngineConfig, files: ModelFiles, shard: Shard, *, measure: bool = True) -> ResolvedConfig:
    """Resolve `config` for one shard of the model in `files`; ConfigurationError if this machine cannot compute it.

    Attention backends are tried on a GPU only with `measure`.
    """
    device = choose_device(config.device, shard)
    check_capability(device)
    resolved = _resolve(config, files, shard, device, fp8_products=multiplies_fp8(device), measure=measure)
    if device.type == "cuda" and not multiplies_fp8(device) and resolved.keeps_fp8:
        gpu, dtype = torch.cuda.get_device_name(device), str(resolved.dtype).removeprefix("torch.")
        log.info("%s does not multiply in FP8: weights stay in FP8, and are multiplied in %s", gpu, dtype)
    return resolved


def check_capability(device: torch.device) -> None:
    """Raise ConfigurationError for a GPU that is too old for the kernels."""
    found = capability(device)
    if found is not None and found < OLDEST:
        raise ConfigurationError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}, and the kernels need "
            f"{OLDEST[0]}.{OLDEST[1]} (Ampere) or later; use such a GPU, or --device cpu"
        )


def resolve_for_estimate(config: EngineConfig, files: ModelFiles, *, fp8_products: bool = True) -> ResolvedConfig:
    """Resolve `config` for the first rank on a GPU that need not be present; `fp8_products`: it multiplies in FP8."""
    shard, gpu = Shard(0, config.tensor_parallel_size), torch.device("cuda")
    return _resolve(replace(config, attention_backend="auto"), files, shard, gpu, fp8_products=fp8_products)


def _pooling(files: ModelFiles, spec: ModelSpec) -> PoolingConfig:
    """Return the model's pooling; ModelLoadError if it is not supported, and the model can do nothing else."""
    pooling = pooling_of(files, spec)
    if spec.head is None and pooling.kind not in COMPUTED_POOLINGS:
        supported = ", ".join(COMPUTED_POOLINGS)
        raise ModelLoadError(f"{files.name}: embeddings by {pooling.kind} are not supported; supported: {supported}")
    return pooling


def _resolve(
    config: EngineConfig,
    files: ModelFiles,
    shard: Shard,
    device: torch.device,
    *,
    fp8_products: bool,
    measure: bool = False,
) -> ResolvedConfig:
    spec = for_contexts(quantized(files, read_spec(files), config.quantization), config.max_model_len)
    dtype = choose_dtype(config.dtype, spec, device)
    if config.enable_lora and spec.head is None:
        raise ConfigurationError(
            f"--enable-lora: {spec.architecture} does not generate text, so it has no adapters; omit the flag"
        )
    kv_dtype = choose_kv_dtype(config.kv_cache_dtype, dtype, spec)
    blueprint = make_blueprint(spec, dtype, shard, device, fp8_products=fp8_products)
    blueprint.dense = DenseModules(_pooling(files, spec).dense, torch.device("meta"))
    check_alignment(spec, shard.size)
    check_experts_stay(blueprint)
    task = attention_task(blueprint, config.block_size, kv_dtype)
    backend = select_backend(config.attention_backend, device, task, measure=measure)
    seqs, from_gguf = choose_max_num_seqs(config, device), files.gguf is not None
    return ResolvedConfig(device, spec, blueprint, task, backend, seqs, max_sampled(config, spec, seqs), from_gguf)


def attention_task(decoder: Decoder, block_size: int, kv_dtype: torch.dtype) -> AttentionTask:
    """Return what the attention layers of a rank's `decoder` compute."""
    return AttentionTask(
        tuple(group for group in decoder.kv_groups if not group.states),
        block_size,
        decoder.dtype,
        kv_dtype,
        decoder.ranks.shard.num_heads(decoder.spec),
        plain=all(mixer.variant.plain for mixer in decoder.attentions()),
    )


def long_context(spec: ModelSpec) -> LongContext | None:
    """Return the length beyond which sequences use other RoPE frequencies (LongRoPE); None for models without one."""
    rope = spec.long_rope
    return None if rope is None else LongContext(rope.original_max_position, rope.recomputed)


def make_blueprint(
    spec: ModelSpec,
    dtype: torch.dtype,
    shard: Shard,
    device: torch.device = _CPU,
    *,
    fp8_products: bool = False,
) -> Decoder:
    """Return a rank's decoder on the `meta` device, with the tensors that it is to have on `device`.

    A GPU need not be present; `fp8_products` says whether it multiplies in FP8.
    """
    support = device_support(planned_compute(spec, dtype, device, shard), device, fp8_products=fp8_products)
    return Decoder(spec, dtype=dtype, device=torch.device("meta"), ranks=Collectives(shard), support=support)


def choose_device(name: str, shard: Shard) -> torch.device:
    """Return the rank's device: `auto` is a GPU if there is one; each rank has its own GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigurationError("--device cuda: there is no CUDA GPU here; use --device cpu, or give the pod a GPU")
    if name == "cpu" or not available:
        return torch.device("cpu")
    if shard.size > (count := torch.cuda.device_count()):
        raise ConfigurationError(f"--tensor-parallel-size {shard.size}: there are only {count} GPUs here")
    return torch.device("cuda") if shard.size == 1 else torch.device("cuda", shard.rank)


def choose_max_num_seqs(config: EngineConfig, device: torch.device) -> int:
    """Return --max-num-seqs, or a default by device: more requests than a CPU's cores can compute delay each other.

    Every request needs a token in each step, so the default is never above --max-num-batched-tokens.
    """
    if config.max_num_seqs is not None:
        return config.max_num_seqs
    on_device = _MOST_SEQS
    if device.type == "cpu":
        on_device = min(on_device, _SEQS_OF_A_CORE * usable_cores())
    return min(on_device, config.max_num_batched_tokens)


def max_sampled(config: EngineConfig, spec: ModelSpec, max_num_seqs: int) -> int:
    """Return the most tokens that a step samples; ConfigurationError if the model cannot use draft tokens."""
    if (speculative := config.speculative) is None:
        return max_num_seqs
    if any(group.states for group in spec.kv_groups):
        raise ConfigurationError(
            "--speculative-config: this model has layers with a recurrent state, from which rejected draft tokens "
            "cannot be removed; omit the flag"
        )
    return min(max_num_seqs * (1 + speculative.num_speculative_tokens), config.max_num_batched_tokens)


def choose_dtype(name: str, spec: ModelSpec, device: torch.device) -> torch.dtype:
    """Return the dtype: `auto` is the checkpoint's, but bfloat16 instead of float16 on a CPU."""
    if name == "auto":
        return torch.bfloat16 if spec.dtype in {torch.bfloat16, torch.float16} and device.type == "cpu" else spec.dtype
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


def choose_kv_dtype(name: str, dtype: torch.dtype, spec: ModelSpec) -> torch.dtype:
    """Return the dtype of cached keys and values: `auto` is that of activations, all other names mean e4m3."""
    if name != "auto" and any(group.rows for group in spec.kv_groups):
        raise ConfigurationError(
            f"--kv-cache-dtype {name}: {spec.architecture} keeps compressed keys or an index of tokens in the cache, "
            "which cannot be stored in 8 bits; use auto"
        )
    return dtype if name == "auto" else FP8
