"""Measures at start which attention backend is the quickest, for some milliseconds, with the model's own shapes."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, AttentionTask, AttentionVariant, KVGroupSpec, StepInputs
from octavo_engine.capture import CUDAGraphs, Work
from octavo_engine.errors import EngineDeadError

log = logging.getLogger(__name__)

Lens = list[tuple[int, int]]
"""The numbers of query tokens and context tokens of each sequence of a step."""
_LAYERS = 8
"""Attention calls measured in a row, like those of a model's layers; decodes run as one CUDA graph."""
_ROUNDS = 3
LIMIT = 1.0
"""Seconds of measuring after which no further trial is begun; compiling is not counted."""


@dataclass(frozen=True)
class Trial:
    """Steps of one kind that are measured."""

    name: str
    steps: tuple[Lens, ...]
    """The sequence lengths of each step. If there are several steps, their shapes all differ, as those of prefills do,
    so that a backend's cost for a new shape is measured; the first step then only warms up."""

    @property
    def decodes(self) -> bool:
        """True if all steps are decodes, which may run as graphs."""
        return all(query_len == 1 for step in self.steps for query_len, _ in step)


TRIALS = (
    Trial("decode of 16 at 2,048", ([(1, 2048)] * 16,)),
    Trial("prefill of 1,024", tuple([(1024 - 3 * i, 1024 - 3 * i)] for i in range(_ROUNDS + 1))),
    Trial("decode of 1 at 4,096", ([(1, 4096)],)),
    Trial("decode of 64 at 1,024", ([(1, 1024)] * 64,)),
)
Measure = Callable[[AttentionBackend, Trial], float]
"""Returns the seconds that a backend takes for the attention of all layers in a step of a trial."""


def choose(candidates: Sequence[AttentionBackend], measure: Measure, trials: Sequence[Trial] = TRIALS) -> str:
    """Return the name of the quickest candidate by the geometric mean over trials, so that each trial counts the same.

    A backend that fails in a trial is dropped. No further trial is begun after `LIMIT` seconds.
    """
    times: dict[str, list[float]] = {backend.name: [] for backend in candidates}
    spent = 0.0
    for trial in trials:
        for backend in [backend for backend in candidates if backend.name in times]:
            seconds = attempt(backend, trial.name, partial(measure, backend, trial))
            if seconds is None:
                del times[backend.name]
                continue
            times[backend.name].append(seconds)
            spent += _ROUNDS * seconds
        measured = ", ".join(f"{name} {taken[-1] * 1e6:,.0f} µs" for name, taken in times.items())
        log.info("attention backends, %s: %s", trial.name, measured)
        if len(times) < 2 or spent > LIMIT:
            break
    return min(times, key=lambda name: sum(map(math.log, times[name])), default=candidates[0].name)


def attempt(backend: AttentionBackend, name: str, work: Callable[[], float]) -> float | None:
    """Return the result of `work`; if it fails, log why the backend is not used and return None.

    Raises EngineDeadError if another project's kernels made the device unusable.
    """
    try:
        return work()
    except torch.AcceleratorError as error:
        if backend.name == "triton":
            raise
        log.exception("attention backend %s left the device unusable", backend.name)
        cause = str(error).partition("\n")[0]  # the rest is CUDA's advice on debugging, which the log has
        raise EngineDeadError(
            f"attention backend {backend.name} broke the device as it was tried: start with "
            f"--attention-backend triton, which tries no other ({name}: {cause})"
        ) from error
    except Exception as error:  # noqa: BLE001  (others' kernels may raise any error, and the start must go on)
        log.info("attention backend %s is not used: %s (%s)", backend.name, error, name)
        return None


class DeviceMeasure:
    """Measures the attention of all groups of `task` on a GPU, with caches full of zeros; a `Measure`."""

    def __init__(self, task: AttentionTask, device: torch.device) -> None:
        self._task, self._device = task, device
        self._graphs = CUDAGraphs(device)

    @torch.inference_mode()
    def __call__(self, backend: AttentionBackend, trial: Trial) -> float:
        """Return the seconds of a step's attention in all layers."""
        total = 0.0
        for group in self._task.groups:
            works = [attention_work(backend, self._task, group, lens, self._device) for lens in trial.steps]
            works[0]()  # compiles, sets up
            if trial.decodes and backend.graph_safe:
                works = self._graphs.capture(works)
            measured = works[1:] or works * _ROUNDS
            total += statistics.median(map(self._seconds, measured)) / _LAYERS * len(group.layers)
        torch.cuda.empty_cache()
        return total

    def _seconds(self, work: Work) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def attention_work(
    backend: AttentionBackend, task: AttentionTask, group: KVGroupSpec, lens: Lens, device: torch.device
) -> Work:
    """Return a function that computes the attention of `_LAYERS` layers of `group` in one step."""
    inputs = step_of(lens, task.block_size, device)
    num_blocks = sum(-(-context // task.block_size) for _, context in lens)
    one_layer = replace(group, layers=(0,))
    cache = backend.allocate(one_layer, num_blocks, task.block_size, task.kv_dtype, device)[0]
    variant = AttentionVariant(group.head_dim**-0.5)
    query: Tensor = torch.zeros(len(inputs.positions), task.num_heads, group.head_dim, dtype=task.dtype, device=device)

    def work() -> None:
        metadata = backend.prepare(inputs, 0, task.block_size, group.window)
        for _ in range(_LAYERS):
            backend.attend(query, cache, metadata, variant)

    return work


def step_of(lens: Lens, block_size: int, device: torch.device) -> StepInputs:
    """Return the inputs of a step with one KV group, whose sequences hold consecutive blocks of their own."""
    query_lens, contexts = ([length[i] for length in lens] for i in (0, 1))
    widths = [-(-context // block_size) for context in contexts]
    firsts = torch.tensor([0, *widths]).cumsum(0)[:-1]
    columns = torch.arange(max(widths))
    table = torch.where(columns < torch.tensor(widths)[:, None], firsts[:, None] + columns, 0)
    owners = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(query_lens))
    positions = torch.cat([torch.arange(context - count, context) for count, context in lens])
    slots = table[owners, positions // block_size] * block_size + positions % block_size
    return StepInputs(
        token_ids=torch.zeros(len(positions), dtype=torch.int32, device=device),
        positions=positions.to(device),
        cu_query_lens=torch.tensor([0, *query_lens]).cumsum(0).int().to(device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=(table.int().to(device),),
        slot_mapping=(slots.to(device),),
        token_indices=torch.arange(len(lens), device=device),
        query_lens_host=tuple(query_lens),
        context_lens_host=tuple(contexts),
    )
