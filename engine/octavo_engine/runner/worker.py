"""The worker executes plans on one device: state table, block operations, forward pass (or graph replay), sampling."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, StepInputs
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.states import prepare_states
from octavo_engine.attention.token_rows import prepare_rows
from octavo_engine.capture import Capture
from octavo_engine.core.request import FinishReason
from octavo_engine.core.step import RowError, StepPlan, StepResult
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.runner.block_ops import run_block_ops
from octavo_engine.runner.compare_graphs import graphs_match_eager
from octavo_engine.runner.decodes import Decodes
from octavo_engine.runner.graphs import (
    Captured,
    StepGraph,
    StepGraphs,
    block_tables,
    mixed_inputs,
    mixed_sequences,
    padding_inputs,
)
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.kv_cache import KVCache
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.runner.out_of_memory import as_out_of_memory
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.sampling.prompt_outputs import (
    PromptOutputs,
    PromptReadback,
    has_finite_vector,
    with_read_tokens,
)
from octavo_engine.runner.sampling.readback import NOT_FINITE, Readback
from octavo_engine.runner.sampling.sampler import Sampled, parts, sample
from octavo_engine.runner.sampling.verify import verify_drafts
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.step_parts import compute_in_parts, no_memory, num_places
from octavo_engine.runner.timer import StepTimer

log = logging.getLogger(__name__)

_MOST_WITHOUT_MEMORY = 2
"""The most requests in a row for which there may be no memory even alone: with one more, the device is not usable."""


@dataclass(frozen=True, slots=True)
class ForwardedStep:
    """A step whose forward pass is launched. It must be sampled before the next forward pass is launched."""

    plan: StepPlan
    timer: StepTimer
    sampled: SampledRows | None = None
    """The rows to sample; None if the step computes no token."""
    logits: Tensor | None = None
    """The logits [R, vocab] of all sampled places; None if no place is sampled."""
    prompts: dict[int, PromptReadback] = field(default_factory=dict)
    """The outputs of prompts, by index among the rows that sample."""
    lost: dict[str, RowError] = field(default_factory=dict)
    """As in `StepResult`; their logits, if they sample, are zeros. If nothing was computed, there are no logits."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose sampling is launched too; its tokens are being copied to the host."""

    plan: StepPlan
    timer: StepTimer
    samples: list[Readback]
    """The results of all sampled places in order; places that were sampled together are one item."""
    errors: dict[int, RowError]
    """The errors of places that could not be sampled, by index; `samples` has a placeholder for each."""
    prompts: dict[int, PromptReadback]
    """The outputs of prompts, by index among the rows that sample."""
    lost: dict[str, RowError] = field(default_factory=dict)
    """As in `StepResult`."""


class Worker:
    """Runs one device's model, with its KV cache and state table.

    A step is two calls, `forward` and `sample`, because a row's mask may be known only while the device computes the
    logits. Both are called in the order of the plans and always from the same thread, and neither waits for the device;
    `finish` waits for a step's results, from any thread. Sampled tokens are written into the state table on the device
    before the next step runs there, so that step need not wait for `finish`.
    """

    def __init__(
        self,
        decoder: Decoder,
        backend: AttentionBackend,
        cache: KVCache,
        table: StateTable,
        adapters: RowAdapters | None = None,
        pooling: str = "last",
    ) -> None:
        """`adapters` is None if none are served; `pooling` is the kind of pooling, as in `PromptOutputs`."""
        self._decoder = decoder
        self._backend = backend
        self._cache = cache
        self._table = table
        self._group_of_layer, self._state_groups = cache.group_of_layer, cache.state_groups
        self._row_groups = cache.row_groups
        self._adapters = adapters
        self._graphs: StepGraphs | None = None
        self._adapter_graphs: StepGraphs | None = None
        """The graphs of steps in which any token has an adapter."""
        self._prompts = PromptOutputs(decoder, table, pooling)
        self._decodes = Decodes.of(decoder, backend, cache, table)
        self._without_memory: set[str] = set()
        """The clients' requests for which there was no memory even alone since any other was computed."""

    @torch.inference_mode()
    def capture(
        self, capture: Capture, sizes: list[int], captured: Captured = lambda *_: None, mixed: Sequence[int] = ()
    ) -> None:
        """Capture graphs for steps of decodes alone, with up to the largest of `sizes` (ascending) sequences.

        Steps with chunks of prompts get graphs, too, for the numbers of tokens in `mixed`. The graphs hold the
        addresses of this worker's cache. Capturing writes nothing into the cache.
        """
        decoder = self._decoder
        inputs = self._graph_inputs(sizes, mixed)
        most = max(len(each.token_indices) for each in inputs)
        logits = torch.zeros(most, decoder.spec.vocab_size, dtype=decoder.logits_dtype, device=self._table.device)
        self._graphs = StepGraphs(capture, inputs, logits, self._forward, captured)
        if self._adapters is not None:
            forward = partial(self._forward_with_adapters, self._adapters)
            self._adapter_graphs = StepGraphs(capture, inputs, logits, forward, captured)
            self._adapters.use(())

    def _graph_inputs(self, sizes: list[int], mixed: Sequence[int]) -> list[StepInputs]:
        """Return the buffers of all graphs."""
        table = self._table
        room = [mixed_sequences(sizes[-1], len(table.tokens), tokens) for tokens in mixed]
        tables = block_tables(table, max([sizes[-1], *map(sum, room)]))
        inputs = [padding_inputs(table, rows, tables) for rows in sizes]
        return inputs + [mixed_inputs(table, tokens, *each, tables) for tokens, each in zip(mixed, room, strict=True)]

    @torch.inference_mode()
    def check_mixed_graphs(self, before: StepPlan, plan: StepPlan) -> None:
        """Compute a plan with chunks by graphs and eagerly, and drop the graphs of mixed steps if they differ.

        The step `before` it, which computes the contexts, runs eagerly. All ranks do as the first one, which has the
        logits. Graphs with adapters are dropped with those without.
        """
        graphs, ranks = self._graphs, self._decoder.ranks
        if graphs is None or not graphs.mixed():
            return
        self._graphs = None
        self.execute(before)
        self._graphs = graphs

        def eager(inputs: StepInputs) -> Tensor:
            return self._decoder.logits(self._decoder(inputs, self._context(inputs)))

        right = graphs_match_eager(graphs.mixed(), plan, self._table, eager, compares=ranks.shard.rank == 0)
        if not ranks.alone:
            right = bool(ranks.broadcast(torch.tensor([int(right)], device=self._table.device)).item())
        if not right:
            log.warning("CUDA graphs of steps with prompts gave wrong logits in a trial: such steps run without graphs")
            for each in (graphs, self._adapter_graphs):
                if each is not None:
                    each.drop_mixed()

    def close(self) -> None:
        """Disconnect from the other ranks. Graphs are freed first: NCCL may hang while they hold its resources.

        See pytorch#115388 and vllm#39846. Callers should wait for this with a timeout.
        """
        self._graphs = self._adapter_graphs = None
        self._decoder.ranks.close()

    def write_adapter(self, write: AdapterWrite) -> None:
        """Write a part of an adapter into its slot on the device, after the launched steps."""
        if self._adapters is None:
            raise RuntimeError("there are no slots for adapters")
        self._adapters.write(write)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step and wait for it; OutOfMemoryError if there is no memory for all of it at once."""
        return self.finish(self.sample(self.forward(plan, in_parts=False)))

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Call `forward` and `sample` one after the other."""
        return self.sample(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan, *, in_parts: bool = True) -> ForwardedStep:
        """Enqueue a step's state changes, block operations and forward pass; on the CPU they are done on return.

        With `in_parts`, a step for which the device has no memory is computed in parts.
        """
        timer = StepTimer(self._table.device)
        self._table.apply(plan)
        self._prompts.begin(plan.new_rows)
        run_block_ops(self._cache, plan.block_ops)
        if not plan.num_tokens:
            return ForwardedStep(plan, timer)
        slots = self._slots(plan)
        graph = self._graph_for(plan, with_adapters=bool(slots))
        if graph is None:
            return self._forwarded(plan, timer, slots, in_parts=in_parts and self._decoder.ranks.alone)
        step = gather_inputs(plan, self._table, graph.inputs)
        if self._adapters is not None:
            self._adapters.fill_graph(slots)
        graph.replay()
        self._without_memory.clear()
        samples = len(step.sampled.rows)
        return ForwardedStep(plan, timer, step.sampled, graph.logits[:samples] if samples else None)

    @torch.inference_mode()
    def sample(self, step: ForwardedStep, masks: Masks = NO_MASKS) -> LaunchedStep:
        """Enqueue the sampling of a step whose forward pass was enqueued last."""
        samples: list[Readback] = []
        errors: dict[int, RowError] = {}
        sampled, logits = step.sampled, step.logits
        if sampled is not None and logits is not None:
            if self._decoder.ranks.shard.rank == 0:
                if masks:
                    sampled = replace(sampled, masks=masks)
                samples, errors = self._sample(logits, sampled)
            self._share_tokens(sampled)
        elif step.lost:
            samples = [Readback(_placeholder(num_places(step.plan)))]
        step.timer.stop()
        return LaunchedStep(step.plan, step.timer, samples, errors, step.prompts, step.lost)

    def finish(self, launched: LaunchedStep) -> StepResult:
        """Wait until the device has computed a launched step, and return its results."""
        token_ids: list[int] = []
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        errors = dict(launched.errors)
        for readback in launched.samples:
            first = len(token_ids)
            tokens, some_logprobs, some_errors = readback.read()
            token_ids += tokens
            logprobs |= {first + index: (value,) for index, value in some_logprobs.items()}
            errors |= {first + index: error for index, error in some_errors.items()}
        plan, seconds = launched.plan, launched.timer.seconds()
        result = StepResult(plan.step, token_ids, logprobs=logprobs, errors=errors, seconds=seconds)
        if plan.drafts:
            result = verify_drafts(result, plan.drafts)
        if launched.lost:
            result = replace(result, lost=launched.lost)
        if not launched.prompts:
            return result
        prompts = {index: readback.read() for index, readback in launched.prompts.items()}
        wrong = {index: NOT_FINITE for index, prompt in prompts.items() if not has_finite_vector(prompt)}
        return replace(result, prompts=prompts, errors={**result.errors, **wrong})

    def _graph_for(self, plan: StepPlan, *, with_adapters: bool) -> StepGraph | None:
        """Return the graph that computes a plan; None if it runs eagerly, as where outputs of prompts are asked for."""
        graphs = self._adapter_graphs if with_adapters else self._graphs
        return None if graphs is None or self._prompts.reads(plan) else graphs.graph_of(plan)

    def _slots(self, plan: StepPlan) -> Sequence[int]:
        """Note the adapters of a plan's new rows, and return the slots of its tokens as `RowAdapters.begin` does."""
        return [] if self._adapters is None else self._adapters.begin(plan)

    def _forwarded(self, plan: StepPlan, timer: StepTimer, slots: Sequence[int], *, in_parts: bool) -> ForwardedStep:
        """Run a step's forward pass eagerly; if the device has no memory for it, again, and then `in_parts`.

        Each attempt writes the same KV blocks again. Recurrent states may have been advanced by the first attempt, so
        with them all requests of the step are lost, and are computed again from their beginning. Other ranks wait in an
        all-reduce, so with them the error ends the engine.
        """
        states = any(group.states for group in self._cache.groups)
        for last in (True,) if states or not self._decoder.ranks.alone else (False, True):
            try:
                step = ForwardedStep(plan, timer, *self._computed(plan, slots))
                self._without_memory.clear()
                return step
            except torch.OutOfMemoryError as error:
                if last and not in_parts:
                    raise
                log.warning("no memory for a step of %d tokens: %s", plan.num_tokens, error)
                failure = error.with_traceback(None)  # whose frames would keep the attempt's memory
            torch.cuda.empty_cache()
        if states or len(plan.decode_rows) + len(plan.chunks) == 1:
            return ForwardedStep(plan, timer, lost=self._lost(plan, failure))
        return self._in_parts(plan, timer)

    def _in_parts(self, plan: StepPlan, timer: StepTimer) -> ForwardedStep:
        """Compute what the device has memory for; the other requests are lost, all if their logits have no room."""
        try:
            with as_out_of_memory():
                sampled = gather_inputs(plan, self._table).sampled
                shape = len(sampled.rows), self._decoder.spec.vocab_size
                logits = torch.zeros(shape, dtype=self._decoder.logits_dtype, device=self._table.device)
        except torch.OutOfMemoryError as error:
            return ForwardedStep(plan, timer, lost=self._lost(plan, error))
        step = ForwardedStep(plan, timer, sampled, logits if sampled.rows else None)
        places = rows = 0

        def compute(part: StepPlan) -> dict[int, PromptReadback]:
            return self._computed(part, self._slots(part), logits[places:])[2]

        for part, prompts in compute_in_parts(plan, compute):
            if isinstance(prompts, torch.OutOfMemoryError):
                step.lost.update(self._lost(part, prompts))
            else:
                self._without_memory.clear()
                step.prompts.update({rows + index: readback for index, readback in prompts.items()})
            places += num_places(part)
            rows += len(part.decode_rows) + sum(chunk.samples for chunk in part.chunks)
        return step

    def _lost(self, part: StepPlan, error: torch.OutOfMemoryError) -> dict[str, RowError]:
        """Return a part's requests, which are not computed; raise OutOfMemoryError if that has happened too often."""
        rows = [*part.decode_rows, *(chunk.row for chunk in part.chunks)]
        self._prompts.forget(rows)
        names = [self._table.request_id(row) for row in rows]
        log.error("no memory for %d tokens of the requests %s: %s", part.num_tokens, ", ".join(names), error)
        self._without_memory.add(names[0].partition("-")[0])
        if len(self._without_memory) > _MOST_WITHOUT_MEMORY:
            count = len(self._without_memory)
            raise torch.OutOfMemoryError(f"the device is out of memory: {count} requests in a row found none: {error}")
        return dict.fromkeys(names, no_memory(error))

    @as_out_of_memory()
    def _computed(
        self, plan: StepPlan, slots: Sequence[int], out: Tensor | None = None
    ) -> tuple[SampledRows, Tensor | None, dict[int, PromptReadback]]:
        """Compute a plan's rows, whose changes the state table has, and begin to read the outputs of prompts.

        `slots` are its tokens' adapters. Returns the places to sample, their logits [R, vocab] (None if no place is
        sampled; the first rows of `out` if it is given), and the outputs of prompts by index among the rows that
        sample. After an error it can be called again.
        """
        if self._adapters is not None:
            self._adapters.use(slots)
        if self._decodes is not None and not slots and (found := self._decodes(plan, out)) is not None:
            return *found, {}
        step = gather_inputs(plan, self._table)
        reads, samples = self._prompts.reads(plan), len(step.sampled.rows)
        inputs = with_read_tokens(step.inputs, reads) if reads else step.inputs
        hidden = self._decoder(inputs, self._context(inputs))
        logits = self._decoder.logits(hidden[:samples], None if out is None else out[:samples]) if samples else None
        of_chunks, more = hidden[plan.num_decode_tokens : samples], hidden[samples:]
        complete = self._prompts.read(reads, of_chunks, more) if reads else {}
        return step.sampled, logits, {len(plan.decode_rows) + index: found for index, found in complete.items()}

    def _forward(self, inputs: StepInputs, logits: Tensor) -> None:
        self._decoder.logits(self._decoder(inputs, self._context(inputs)), logits)

    def _forward_with_adapters(self, adapters: RowAdapters, inputs: StepInputs, logits: Tensor) -> None:
        adapters.use_in_graph(len(inputs.token_ids))
        self._forward(inputs, logits)

    def _context(self, inputs: StepInputs) -> StepContext:
        cache = self._cache
        return StepContext(
            self._backend,
            cache.layers,
            tuple(self._metadata(inputs, index, group) for index, group in enumerate(cache.groups)),
            self._group_of_layer,
            cache.states,
            self._state_groups,
            cache.rows,
            self._row_groups,
            lengths=inputs.query_lens_host,
        )

    def _metadata(self, inputs: StepInputs, index: int, group: KVGroupSpec) -> Any:
        """Return what all layers of a KV group share in a step; None if the group has no layers."""
        cache = self._cache
        if group.states:
            return prepare_states(inputs, index, len(cache.states[group.layers[0]][0]) - 1)
        if group.rows:
            return prepare_rows(inputs, index, cache.block_size, group.rate)
        return self._backend.prepare(inputs, index, cache.block_size, group.window) if group.layers else None

    def _share_tokens(self, sampled: SampledRows) -> None:
        """Write the first rank's sampled tokens into all ranks' state tables, so that each can launch the next step."""
        ranks, table, places = self._decoder.ranks, self._table, (sampled.rows_device, sampled.positions_device)
        if not ranks.alone:
            table.write_tokens(*places, ranks.broadcast(table.read_tokens(*places)))

    def _sample(self, logits: Tensor, sampled: SampledRows) -> tuple[list[Readback], dict[int, RowError]]:
        """Sample all places; if that fails, one by one, so that only the row at fault ends with an error."""
        try:
            together = parts(sampled, self._table, logits.device)
            if len(together) == 1:  # as in most steps, in which even slices of all places would take time
                return [self._sample_together(logits, sampled)], {}
            return [self._sample_together(logits[part], sampled.part(part)) for part in together], {}
        except torch.AcceleratorError:
            raise  # the device's state is unknown
        except Exception:
            log.exception("sampling %d rows together failed; sampling each of them alone", len(sampled.rows))
        samples, errors = [], {}
        for index in range(len(sampled.rows)):
            alone = slice(index, index + 1)
            torch.cuda.empty_cache()
            try:
                samples.append(self._sample_together(logits[alone], sampled.part(alone)))
            except torch.AcceleratorError:
                raise
            except Exception as error:
                log.exception("sampling failed for request %s", self._table.request_id(sampled.rows[index]))
                end = FinishReason.ERROR, f"sampling failed: {error}"
                errors[index] = no_memory(error) if isinstance(error, torch.OutOfMemoryError) else end
                samples.append(Readback(_placeholder(1)))
        return samples, errors

    @as_out_of_memory()
    def _sample_together(self, logits: Tensor, rows: SampledRows) -> Readback:
        """Sample `rows` from their `logits` [R, vocab] and write their tokens into the state table."""
        sampled = sample(logits, rows, self._table)
        self._table.write_tokens(rows.rows_device, rows.positions_device, sampled.tokens)
        return Readback(sampled)


def _placeholder(places: int) -> Sampled:
    """Return a placeholder result, on the host, for places that could not be sampled."""
    return Sampled(torch.zeros(places, dtype=torch.int64), torch.ones(places, dtype=torch.bool), None)
