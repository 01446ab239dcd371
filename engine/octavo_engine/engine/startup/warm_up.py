"""The warm-up of a worker: its first steps compile kernels before a request comes, and check graphs of mixed steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.config import EngineConfig
from octavo_engine.core.step import Chunk, NewRow, StepPlan, TableChange
from octavo_engine.engine.startup.resolved_config import ResolvedConfig
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.model.spec import ModelSpec, MoESpec
from octavo_engine.runner.memory.memory_plan import MemoryPlan
from octavo_engine.runner.worker import Worker
from octavo_engine.sampling_params import SamplingParams

_WARM_UP = tuple(
    SamplingParams(max_tokens=2, temperature=temperature, top_p=top_p, repetition_penalty=penalty)
    for penalty in (1.0, 1.1)
    for temperature, top_p in ((0.8, 0.9), (0.0, 1.0))
)
"""Sampling parameters of the warm-up: sampled and greedy, which use different kernels, and each again with a penalty:
adjusted logits are float32, for which other kernels are compiled."""
_PROMPTS = (257, 129, 64, 32, 16)
"""Lengths of the warm-up's prompts. Kernels choose tiles by the number of tokens, with borders at 16, 32, 64, 128 and
256: attention without grouped heads has small tiles up to 16, the FP8 block product has tiles for each range, and
weights of 4 and 8 bits are multiplied in another way from 257 tokens on."""
_WARM_UP_ADAPTER = "warm-up"
"""The digest of an adapter without modules."""
_MANY_ROWS = 129
"""A number of decodes with which a device is busy, so that contexts in a latent cache are not split."""
_LONG_ENOUGH = 512
"""A context of so many tokens is split into parts by every attention kernel."""
_END = 64
"""Tokens of a chunk at the end of such a context, so few that its context is split too."""


def warm_up(worker: Worker, config: EngineConfig, resolved: ResolvedConfig, plan: MemoryPlan) -> None:
    """Run prefills and decodes, so that no user's step is the first to compile a kernel or allocate its memory.

    A GPU's kernels are compiled, so it runs prompts of `_lengths` with the sampling parameters of `_WARM_UP`, with an
    empty adapter too if adapters are served, then decodes and a chunk of a context that is long enough to be split, and
    steps of many decodes. A CPU runs one prompt and one decode. All use row 0 and block 0, also as every block of a
    longer context: no request has them yet, and the first request that gets them overwrites them.
    """
    num_groups = len(resolved.kv_groups)
    compiles = resolved.device.type == "cuda"
    short, long = (min(plan.max_model_len, size) - 1 for size in (config.block_size, _LONG_ENOUGH))
    most = min(config.max_num_batched_tokens, plan.max_model_len - 1)
    lengths = [min(length, most) for length in _lengths(resolved.spec)] if compiles else [short]
    if min(short, config.max_num_batched_tokens) < 1:
        return
    blocks = (0,) * (max(long, *lengths) // config.block_size + 1)
    tables = tuple(TableChange(0, group, 0, blocks) for group in range(num_groups))
    if compiles and config.enable_lora:
        worker.write_adapter(AdapterWrite(0, _WARM_UP_ADAPTER, "", (), first=True, last=True))
        _run_prompts(worker, lengths, tables, _WARM_UP_ADAPTER)
        worker.execute(StepPlan(0, decode_rows=[0], decode_starts=[short]))
    _run_prompts(worker, lengths, tables)
    for start in (short, long) if compiles else (short,):
        worker.execute(StepPlan(0, decode_rows=[0], decode_starts=[start]))
    if compiles:
        count = min(_END, most, long)
        worker.execute(StepPlan(0, chunks=(Chunk(0, long - count, count, samples=False),)))
        for count in _decodes(resolved.kv_groups):
            rows = min(resolved.max_num_seqs, count)
            worker.execute(StepPlan(0, decode_rows=[0] * rows, decode_starts=[long] * rows))


def _run_prompts(worker: Worker, lengths: Sequence[int], tables: tuple[TableChange, ...], adapter: str = "") -> None:
    """Compute a prompt of each length in row 0, with the sampling parameters of `_WARM_UP` in turn."""
    for length, params in zip(lengths, cycle(_WARM_UP), strict=False):
        new = NewRow(0, "warm-up", (0,) * length, length, params, adapter=adapter)
        worker.execute(StepPlan(0, (new,), tables, chunks=(Chunk(0, 0, length, samples=True),)))


def _decodes(groups: Sequence[KVGroupSpec]) -> tuple[int, ...]:
    """Return numbers of decodes in a step, one for each way in which kernels split contexts into parts.

    Unlike caches of keys and values, latent caches are split into fewer parts the more sequences decode.
    """
    latent = any(group.latent is not None for group in groups)
    return (2, 4, 8, 16, 32, 64, 128, _MANY_ROWS) if latent else (_MANY_ROWS,)


def _lengths(spec: ModelSpec) -> list[int]:
    """Return prompt lengths for which kernels choose different tiles; experts' kernels choose by rows per expert."""
    from octavo_engine.kernels.experts.moe import FEW_ROWS, SOME_ROWS

    mixtures = {layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, MoESpec)}
    borders = {rows * moe.num_experts // moe.top_k + 1 for moe in mixtures for rows in (FEW_ROWS, SOME_ROWS)}
    return [*_PROMPTS, *sorted(borders)]


def check_mixed_graphs(worker: Worker, config: EngineConfig, resolved: ResolvedConfig, plan: MemoryPlan) -> None:
    """Let the worker compare its graphs of mixed steps with an eager step of a decode and the end of a prompt.

    It uses the first two rows, and two blocks for each, which no request has yet. If there are not so many, nothing is
    compared.
    """
    size, groups = plan.block_size, resolved.kv_groups
    blocks = min(plan.blocks_of(group.window, states=bool(group.states)) for group in groups)
    first, second, end = size + 3, size - 1, 5  # the second row begins its second block in the step that is compared
    longest = min(plan.max_model_len, config.max_num_batched_tokens)
    if not resolved.mixed_graphs(config) or resolved.max_num_seqs < 2 or blocks < 4 or longest <= first + second:
        return
    greedy = SamplingParams(max_tokens=2, temperature=0.0)
    tokens = tuple(token % resolved.spec.vocab_size for token in range(first + second + end))
    rows = (
        NewRow(0, "warm-up", tokens[:first], first, greedy),
        NewRow(1, "warm-up", tokens[first:], second + end, greedy),
    )
    tables = tuple(TableChange(row, group, 0, (2 * row, 2 * row + 1)) for row in (0, 1) for group in range(len(groups)))
    before = StepPlan(0, rows, tables, chunks=(Chunk(0, 0, first, True), Chunk(1, 0, second, False)))
    checked = StepPlan(0, decode_rows=[0], decode_starts=[first], chunks=(Chunk(1, second, end, True),))
    worker.check_mixed_graphs(before, checked)
