"""The worker executes plans on one device: state table, block operations, forward pass (or graph replay), sampling."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.states import prepare_states
from octavo_engine.attention.token_rows import prepare_rows
from octavo_engine.capture import Capture
from octavo_engine.core.request import TokenLogprobs
from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.runner.block_ops import run_block_ops
from octavo_engine.runner.graphs import Captured, DecodeGraphs, padding_inputs
from octavo_engine.runner.inputs import GatheredStep, gather_inputs
from octavo_engine.runner.kv_cache import KVCache
from octavo_engine.runner.masks import NO_MASKS, Masks, by_place
from octavo_engine.runner.prompt_outputs import PromptOutputs, PromptReadback, with_read_tokens
from octavo_engine.runner.readback import Readback
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.sampler import Sampled, parts, sample
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.timer import StepTimer
from octavo_engine.runner.verify import verify_drafts

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose sampling is launched too; its tokens are being copied to the host."""

    plan: StepPlan
    timer: StepTimer
    samples: list[Readback]
    """The results of all sampled places in order; places that were sampled together are one item."""
    errors: dict[int, str]
    """The errors of places that could not be sampled, by index; `samples` has a placeholder for each."""
    prompts: dict[int, PromptReadback]
    """The outputs of prompts, by index among the rows that sample."""


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
        self._graphs: DecodeGraphs | None = None
        self._adapter_graphs: DecodeGraphs | None = None
        """The graphs of steps in which any token has an adapter."""
        self._prompts = PromptOutputs(decoder, table, pooling)

    @torch.inference_mode()
    def capture(self, capture: Capture, sizes: list[int], captured: Captured = lambda *_: None) -> None:
        """Capture graphs for steps of decodes alone, with up to the largest of `sizes` (ascending) sequences.

        The graphs hold the addresses of this worker's cache. Capturing writes nothing into the cache.
        """
        decoder, most = self._decoder, sizes[-1]
        logits = torch.zeros(most, decoder.spec.vocab_size, dtype=decoder.logits_dtype, device=self._table.device)
        inputs = padding_inputs(self._table, most)
        self._graphs = DecodeGraphs(capture, sizes, inputs, logits, self._forward, captured)
        if self._adapters is not None:
            forward = partial(self._forward_with_adapters, self._adapters)
            self._adapter_graphs = DecodeGraphs(capture, sizes, inputs, logits, forward, captured)
            self._adapters.use(())

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
        """Compute one step and wait for it."""
        return self.finish(self.launch(plan))

    def launch(self, plan: StepPlan, masks: Masks = NO_MASKS) -> LaunchedStep:
        """Call `forward` and `sample` one after the other."""
        return self.sample(self.forward(plan), masks)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> ForwardedStep:
        """Enqueue a step's state changes, block operations and forward pass; on the CPU they are done on return."""
        timer = StepTimer(self._table.device)
        self._table.apply(plan)
        self._prompts.begin(plan.new_rows)
        run_block_ops(self._cache, plan.block_ops)
        if not plan.num_tokens:
            return ForwardedStep(plan, timer)
        slots = [] if self._adapters is None else self._adapters.begin(plan)
        graphs, decodes = self._graphs_for(plan, with_adapters=bool(slots)), plan.num_decode_tokens
        step = gather_inputs(plan, self._table, None if graphs is None else graphs.inputs(decodes))
        if self._adapters is not None:
            self._adapters.use(slots) if graphs is None else self._adapters.fill_graph(slots)
        if graphs is not None:
            return ForwardedStep(plan, timer, step.sampled, graphs.replay(decodes))
        return self._forwarded(plan, timer, step)

    @torch.inference_mode()
    def sample(self, step: ForwardedStep, masks: Masks = NO_MASKS) -> LaunchedStep:
        """Enqueue the sampling of a step whose forward pass was enqueued last."""
        samples: list[Readback] = []
        errors: dict[int, str] = {}
        sampled, logits = step.sampled, step.logits
        if sampled is not None and logits is not None:
            if self._decoder.ranks.shard.rank == 0:
                if masks:
                    sampled = replace(sampled, masks=by_place(masks, step.plan))
                samples, errors = self._sample(logits, sampled)
            self._share_tokens(sampled)
        step.timer.stop()
        return LaunchedStep(step.plan, step.timer, samples, errors, step.prompts)

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
        prompts = {index: readback.read() for index, readback in launched.prompts.items()}
        return replace(result, prompts=prompts) if prompts else result

    def _graphs_for(self, plan: StepPlan, *, with_adapters: bool) -> DecodeGraphs | None:
        """Return the graphs that compute a plan; None if its forward pass runs eagerly."""
        graphs = self._adapter_graphs if with_adapters else self._graphs
        return graphs if graphs is not None and not plan.chunks and graphs.covers(plan.num_decode_tokens) else None

    def _forwarded(self, plan: StepPlan, timer: StepTimer, step: GatheredStep) -> ForwardedStep:
        """Run the forward pass of a step eagerly, and begin to read the outputs of its prompts."""
        reads, samples = self._prompts.reads(plan), len(step.sampled.rows)
        inputs = with_read_tokens(step.inputs, reads) if reads else step.inputs
        hidden = self._hidden(inputs)
        of_chunks, more = hidden[plan.num_decode_tokens : samples], hidden[samples:]
        complete = self._prompts.read(reads, of_chunks, more) if reads else {}
        prompts = {len(plan.decode_rows) + index: readback for index, readback in complete.items()}
        logits = self._decoder.logits(hidden[:samples]) if samples else None
        return ForwardedStep(plan, timer, step.sampled, logits, prompts)

    def _hidden(self, inputs: StepInputs) -> Tensor:
        """Return the hidden states of a step; retry once if the device's memory is exhausted for a moment.

        The retry writes the same KV blocks again. With recurrent states, which the first attempt may have advanced, or
        with other ranks, which wait in an all-reduce, there is no retry and the error ends the engine.
        """

        def compute() -> Tensor:
            hidden: Tensor = self._decoder(inputs, self._attention(inputs))
            return hidden

        try:
            return compute()
        except torch.OutOfMemoryError as error:
            if any(group.states for group in self._cache.groups) or not self._decoder.ranks.alone:
                raise
            log.warning("no memory for %d tokens, they are computed again: %s", len(inputs.token_ids), error)
        torch.cuda.empty_cache()
        return compute()

    def _forward(self, inputs: StepInputs, logits: Tensor) -> None:
        self._decoder.logits(self._decoder(inputs, self._attention(inputs)), logits)

    def _forward_with_adapters(self, adapters: RowAdapters, inputs: StepInputs, logits: Tensor) -> None:
        adapters.use_in_graph(len(inputs.token_ids))
        self._forward(inputs, logits)

    def _attention(self, inputs: StepInputs) -> AttentionContext:
        cache = self._cache
        metadata = tuple(
            prepare_states(inputs, index, len(cache.states[group.layers[0]][0]) - 1)
            if group.states
            else prepare_rows(inputs, index, cache.block_size, group.rate)
            if group.rows
            else None
            if not group.layers
            else self._backend.prepare(inputs, index, cache.block_size, group.window)
            for index, group in enumerate(cache.groups)
        )
        return AttentionContext(
            self._backend,
            cache.layers,
            metadata,
            self._group_of_layer,
            cache.states,
            self._state_groups,
            cache.rows,
            self._row_groups,
            lengths=inputs.query_lens_host,
        )

    def _share_tokens(self, sampled: SampledRows) -> None:
        """Write the first rank's sampled tokens into all ranks' state tables, so that each can launch the next step."""
        ranks, table, places = self._decoder.ranks, self._table, (sampled.rows_device, sampled.positions_device)
        if not ranks.alone:
            table.write_tokens(*places, ranks.broadcast(table.read_tokens(*places)))

    def _sample(self, logits: Tensor, sampled: SampledRows) -> tuple[list[Readback], dict[int, str]]:
        """Sample all places; if that fails, one by one, so that only the row at fault ends with an error."""
        try:
            together = parts(sampled, self._table, logits.device)
            return [self._sample_together(logits[part], sampled.part(part)) for part in together], {}
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # the device's state is unknown
        except Exception:
            log.exception("sampling %d rows together failed; sampling each of them alone", len(sampled.rows))
        samples, errors = [], {}
        for index in range(len(sampled.rows)):
            alone = slice(index, index + 1)
            try:
                samples.append(self._sample_together(logits[alone], sampled.part(alone)))
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception as error:
                log.exception("sampling failed for request %s", self._table.request_id(sampled.rows[index]))
                errors[index] = f"sampling failed: {error}"
                samples.append(Readback(_nothing(logits.device)))
        return samples, errors

    def _sample_together(self, logits: Tensor, rows: SampledRows) -> Readback:
        """Sample `rows` from their `logits` [R, vocab] and write their tokens into the state table."""
        sampled = sample(logits, rows, self._table)
        self._table.write_tokens(rows.rows_device, rows.positions_device, sampled.tokens)
        return Readback(sampled)


def _nothing(device: torch.device) -> Sampled:
    """Return a placeholder result for a row that could not be sampled."""
    return Sampled(
        torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, dtype=torch.bool, device=device), None
    )
