"""The start of an engine: finds the model, plans its memory, loads it, and builds the engine loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any, cast

from octavo_engine.config import EngineConfig
from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.engine.adapter_store import AdapterStore
from octavo_engine.engine.adapters import Adapters
from octavo_engine.engine.adaptive_limits import AdaptiveLimits
from octavo_engine.engine.info import AdapterInfo, EngineInfo, ModelInfo
from octavo_engine.engine.loop import EngineLoop
from octavo_engine.engine.startup.load_phases import overall
from octavo_engine.engine.startup.memory_plan_rows import plan_rows, short_context
from octavo_engine.engine.startup.pooled_info import classifier_info, embedding_info
from octavo_engine.engine.startup.rank import MODULE as RANK_MODULE
from octavo_engine.engine.startup.rank import encode_job, encode_memory_plan
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, long_context
from octavo_engine.engine.startup.sizing import Sizing, size_engine
from octavo_engine.engine.startup.worker_setup import ReadyWorker, WorkerSetup, set_up_worker
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.generation_config import read_sampling_defaults
from octavo_engine.model.configuration.pooling import PoolingConfig, pooling_of
from octavo_engine.model.gguf.file import headers_read_once
from octavo_engine.model.origin import commit_of, size_of
from octavo_engine.model.source import ModelFiles, resolve_adapter, resolve_model
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.cpu_threads import configure_cpu_threads
from octavo_engine.runner.device_thread import DeviceThread
from octavo_engine.runner.executor import Executor, GroupExecutor, ThreadExecutor
from octavo_engine.runner.memory.memory_plan import MemoryPlan
from octavo_engine.runner.ranks.rank_processes import Ranks
from octavo_engine.sampling_params import SamplingDefaults
from octavo_engine.speculative.ngram import NGramProposer
from octavo_engine.structured.mask_provider import MaskProvider
from octavo_engine.text.tokenizer import load_tokenizer
from octavo_engine.text_table import Rows

log = logging.getLogger(__name__)

LoadProgress = Callable[[str, float, str], None]
"""Called with the phase, the ratio 0 to 1 over all phases, and a detail."""

_STEP_SHARE = 1 / 8
"""Part of --watchdog-timeout that a step may take, so that a slow CPU does not look stalled at its first long prompt.

A step can still take several times as long as expected: contexts grow, and other processes compete for the cores."""


@headers_read_once()
def start_engine(
    config: EngineConfig,
    progress: LoadProgress,
    log_format: str | None = None,
    planned: Callable[[Rows], None] = lambda _: None,
) -> EngineLoop:
    """Load the model and build the engine; an OctavoError says why that is impossible, and no thread or rank is left.

    `planned` is called with the memory plan as rows of text, before the weights are downloaded. The other ranks log in
    `log_format`; if it is None they report only their errors.
    """
    started = time.perf_counter()
    report = _overall(progress)
    files, sizing = _plan(config, report, planned)
    _fetch_adapters(config, report)
    sampling, pooling = _sampling_defaults(config, files), pooling_of(files, sizing.resolved.spec)
    files = resolve_model(config.model, files.commit or config.revision, report)  # now with weights, which fit
    with ExitStack() as on_error:  # the program may go on without an engine, as one with `LLM` does
        thread = DeviceThread()
        on_error.callback(thread.close, 0.0)
        if sizing.resolved.device.type == "cpu":
            thread.submit(configure_cpu_threads, os.environ, config.tensor_parallel_size).result()
        executor, loaded, sizing = _load(config, files, sizing, thread, report, log_format)
        on_error.callback(executor.close)
        if loaded.plan is not sizing.plan:
            sizing = replace(sizing, plan=loaded.plan)
            log.info("memory plan, graphs measured: %s", sizing.plan.describe())
        scheduler = _scheduler(config, sizing.resolved, sizing.plan, loaded.swap_seconds, pooling)
        adapters = _adapters(config, files, loaded, scheduler, executor)
        info = _engine_info(config, files, sizing, sampling, pooling, time.perf_counter() - started)
        info = replace(info, adapters=_load_adapters(config, adapters))
        report("warmup", 1.0, "")
        loop = EngineLoop(scheduler, executor, info, mask_provider=_mask_provider(files, info), adapters=adapters)
        on_error.pop_all()
    return loop


def _plan(config: EngineConfig, report: LoadProgress, planned: Callable[[Rows], None]) -> tuple[ModelFiles, Sizing]:
    """Plan the memory from the model's small files; the weights are not downloaded yet."""
    files = resolve_model(config.model, config.revision, lambda *_: None, weights=False)
    report("sizing", 0.0, "")
    sizing = size_engine(config, files)
    log.info("memory plan: %s", sizing.plan.describe())
    if warning := short_context(config, sizing.resolved, sizing.plan):
        log.warning(warning)
    device = sizing.describe_device(config.tensor_parallel_size)
    planned(plan_rows(config, files, sizing.resolved, sizing.plan, device))
    return files, sizing


def _fetch_adapters(config: EngineConfig, report: LoadProgress) -> None:
    """Download the adapters of --lora-modules, so that one that is not there is reported before the model is loaded."""
    for name, path in config.adapters:
        report("sizing", 1.0, f"looking for adapter {name}")
        with _named(name):
            resolve_adapter(path)


@contextmanager
def _named(adapter: str) -> Iterator[None]:
    """Name the adapter in the error about it."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(f"--lora-modules {adapter}: {error}") from None


def _engine_info(
    config: EngineConfig,
    files: ModelFiles,
    sizing: Sizing,
    sampling: SamplingDefaults,
    pooling: PoolingConfig,
    load_seconds: float,
) -> EngineInfo:
    resolved, plan = sizing.resolved, sizing.plan
    return EngineInfo(
        max_model_len=plan.max_model_len,
        vocab_size=resolved.spec.vocab_size,
        block_size=config.block_size,
        num_kv_blocks=plan.num_kv_blocks,
        max_num_seqs=resolved.max_num_seqs,
        dtype=str(resolved.dtype).removeprefix("torch."),
        kv_cache_dtype="auto" if resolved.kv_dtype == resolved.dtype else "fp8_e4m3",
        device=str(resolved.device),
        attention_backend=resolved.backend.name,
        eos_token_ids=resolved.spec.eos_token_ids,
        sampling=sampling,
        load_seconds=load_seconds,
        memory=sizing.memory_info(),
        model=ModelInfo(commit=commit_of(files), size=size_of(files)),
        generates=resolved.spec.head is not None,
        embedding=embedding_info(files, resolved.spec, pooling),
        classifier=classifier_info(resolved.spec),
        max_loras=config.max_loras if config.enable_lora else 0,
    )


def _adapters(
    config: EngineConfig, files: ModelFiles, loaded: ReadyWorker, scheduler: Scheduler, executor: Executor
) -> Adapters | None:
    if loaded.adapters is None:
        return None
    store = AdapterStore(loaded.adapters, config.cpu_loras, "" if files.commit is None else files.name)
    return Adapters(store, config.max_loras, scheduler, executor)


def _load_adapters(config: EngineConfig, adapters: Adapters | None) -> tuple[AdapterInfo, ...]:
    """Load the adapters of --lora-modules; ModelLoadError names the first that cannot be used."""
    found = []
    if adapters is None:
        return ()
    for name, path in config.adapters:
        with _named(name):
            found.append(adapters.store.load(name, path))
    return tuple(found)


def _mask_provider(files: ModelFiles, info: EngineInfo) -> MaskProvider | None:
    """Return the provider of grammar masks; None where llguidance is not installed, which `LLM` does not need."""
    if find_spec("llguidance") is None:
        return None
    from octavo_engine.structured.grammar_masks import GrammarMasks
    from octavo_engine.structured.vocabulary import vocabulary

    return GrammarMasks(lambda: vocabulary(load_tokenizer(files), info.vocab_size, info.eos_token_ids), info.vocab_size)


def _sampling_defaults(config: EngineConfig, files: ModelFiles) -> SamplingDefaults:
    if config.generation_config != "auto":
        return SamplingDefaults()
    defaults = read_sampling_defaults(files)
    values = ((field, getattr(defaults, field.name)) for field in fields(defaults))
    own = [f"{field.name} {value:g}" for field, value in values if value != field.default]
    if own:
        log.info("default sampling parameters: %s (from the model; --generation-config)", ", ".join(own))
    return defaults


def _load(
    config: EngineConfig,
    files: ModelFiles,
    sizing: Sizing,
    thread: DeviceThread,
    report: LoadProgress,
    log_format: str | None,
) -> tuple[Executor, ReadyWorker, Sizing]:
    """Load all ranks; return their executor, the first rank's worker, and the final sizing.

    The final sizing differs from `sizing` if the device of another rank has less memory than the first rank's.
    """
    size = config.tensor_parallel_size
    setup = WorkerSetup(config, files, sizing.resolved, sizing.plan, Shard(0, size), replan=sizing.replan)
    if size == 1:
        loaded = thread.submit(set_up_worker, setup, report).result()
        return ThreadExecutor(loaded.worker, thread), loaded, sizing
    config = config_of_ranks(config, sizing.resolved)
    ranks = thread.submit(Ranks, size, RANK_MODULE, encode_job(config, files, log_format)).result()

    def report_all() -> None:
        ratio = ranks.queue.loaded()
        report("loading" if ratio < 1 else "warmup", ratio % 1, f"{size} ranks")

    try:
        sizing = size_engine(config, files, ranks.memories())
        log.info("memory plan of each rank: %s", sizing.plan.describe())
        ranks.send(encode_memory_plan(sizing.plan))
        setup = replace(setup, plan=sizing.plan, rendezvous=ranks.rendezvous, replan=sizing.replan)
        loaded = ranks.wait(thread.submit(set_up_worker, setup, ranks.report_own), report_all)
    except BaseException:
        ranks.kill()
        raise
    ranks.ready()
    return GroupExecutor(ThreadExecutor(loaded.worker, thread), ranks), loaded, sizing


def config_of_ranks(config: EngineConfig, resolved: ResolvedConfig) -> EngineConfig:
    """Return the other ranks' configuration: on GPUs they use the attention backend that the first rank has chosen."""
    return replace(config, attention_backend=resolved.backend.name) if resolved.device.type == "cuda" else config


def _overall(progress: LoadProgress) -> LoadProgress:
    """Wrap `progress`: take each phase's own ratio, and report it on one scale over all phases that never falls."""
    highest = 0.0

    def report(phase: str, ratio: float, detail: str) -> None:
        nonlocal highest
        highest = max(highest, overall(phase, ratio))
        progress(phase, highest, detail)

    return report


def _scheduler(
    config: EngineConfig, resolved: ResolvedConfig, plan: MemoryPlan, swap_block_seconds: float, pooling: PoolingConfig
) -> Scheduler:
    # A vector pooled from more than the last token needs every token computed, so nothing may be skipped or restored.
    resumes = pooling.kind == "last" and resolved.spec.causal
    if resolved.whole_prompts and resolved.spec.causal:
        log.warning(
            "the model's indexer has so few heads that its choices depend on how many tokens a step computes: prompts "
            "are computed in one step, so that contexts have at most --max-num-batched-tokens %d tokens; the prefix "
            "cache and speculative decoding are off",
            config.max_num_batched_tokens,
        )
    settings = SchedulerSettings(
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        policy=cast(Any, config.scheduling_policy),  # the setting's choices are the scheduler's literals
        max_step_seconds=config.watchdog_timeout * _STEP_SHARE,
        swap_block_seconds=swap_block_seconds,
        whole_prompts=resolved.whole_prompts,
        long_context=long_context(resolved.spec),
    )
    # Drafts are checked in a step of several tokens, as prompts that are cut would be.
    proposer = None if config.speculative is None or resolved.whole_prompts else NGramProposer(config.speculative)
    memory = _kv_memory(config, resolved, plan, resumes)
    return Scheduler(settings, memory, _adaptive_limits(config, resolved.max_num_seqs), proposer)


def _kv_memory(config: EngineConfig, resolved: ResolvedConfig, plan: MemoryPlan, resumes: bool) -> KVMemory:
    """Return the blocks of each KV group; `resumes`: whether a sequence may begin or go on from computed blocks."""
    groups = [
        KVGroup(
            plan.blocks_of(group.window, states=bool(group.states)),
            cast(Any, group.kind),  # a model's kinds of KV groups are the scheduler's literals
            group.window,
            plan.swap_blocks_of(group.window, states=bool(group.states)) if resumes else 0,
        )
        for group in resolved.spec.kv_groups
    ]
    return KVMemory(
        groups,
        config.block_size,
        prefix_caching=config.enable_prefix_caching and resumes and not resolved.whole_prompts,
        eviction=config.prefix_cache_policy,
        ttl=config.prefix_cache_ttl,
        max_chunk=config.max_num_batched_tokens,
    )


def _adaptive_limits(config: EngineConfig, max_num_seqs: int) -> AdaptiveLimits | None:
    """Return the limits that follow the targets of TTFT and ITL; None if there is no target."""
    ttft, itl = config.target_ttft_p90, config.target_itl_p90
    if ttft is None and itl is None:
        return None
    return AdaptiveLimits(max_num_seqs, config.max_num_batched_tokens, ttft_p90=ttft, itl_p90=itl)
