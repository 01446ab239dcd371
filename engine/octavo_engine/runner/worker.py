"""Executes plans on one device: state table, block operations, forward pass (a graph's replay or not), sampling."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.capture import Capture
from octavo_engine.core.request import TokenLogprobs
from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.model.decoder import Decoder
from octavo_engine.runner.block_ops import run_block_ops
from octavo_engine.runner.graphs import Captured, DecodeGraphs, padding_inputs
from octavo_engine.runner.inputs import GatheredStep, gather_inputs
from octavo_engine.runner.kv_cache import KVCache
from octavo_engine.runner.readback import Readback
from octavo_engine.runner.sampler import Sampled, sample
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.timer import StepTimer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device works on; its tokens are on their way to the host."""

    step: int
    timer: StepTimer
    samples: list[Readback]
    """Of all sampling rows in order, those that were sampled together in one."""
    errors: dict[int, str]
    """Rows that could not be sampled, by index; they have a place among the samples all the same."""


class Worker:
    """One device's model, cache and state table.

    `launch` gives a step to the device, in the order of the plans and always from the same thread; `finish` waits for
    its results, from any thread. Sampled tokens are in the state table before the next step is launched, so that
    nothing of it has to wait for `finish`.
    """

    def __init__(self, decoder: Decoder, backend: AttentionBackend, cache: KVCache, table: StateTable) -> None:
        self._decoder = decoder
        self._backend = backend
        self._cache = cache
        self._table = table
        self._group_of_layer = cache.group_of_layer
        self._graphs: DecodeGraphs | None = None

    @torch.inference_mode()
    def capture(self, capture: Capture, sizes: list[int], captured: Captured = lambda *_: None) -> None:
        """Have steps of nothing but decodes, of up to the largest of `sizes` (ascending) sequences, run as graphs.

        They hold the addresses of this worker's cache. Nothing is written into it.
        """
        decoder, most = self._decoder, sizes[-1]
        logits = torch.zeros(most, decoder.whole.vocab_size, dtype=decoder.logits_dtype, device=self._table.device)
        inputs = padding_inputs(self._table, most)
        self._graphs = DecodeGraphs(capture, sizes, inputs, logits, self._forward, captured)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step and wait for it."""
        return self.finish(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Enqueue a step's work. On the CPU it is done when this returns."""
        timer = StepTimer(self._table.device)
        self._table.apply(plan)
        run_block_ops(self._cache, plan.block_ops)
        samples: list[Readback] = []
        errors: dict[int, str] = {}
        if plan.num_tokens:
            graphs, decodes = self._graphs_for(plan), len(plan.decode_rows)
            step = gather_inputs(plan, self._table, None if graphs is None else graphs.inputs(decodes))
            logits = self._logits(step) if graphs is None else graphs.replay(decodes)
            if logits is not None:
                if self._decoder.ranks.shard.rank == 0:
                    samples, errors = self._sample(logits, step.sampled)
                self._share_tokens(step)
        timer.stop()
        return LaunchedStep(plan.step, timer, samples, errors)

    def finish(self, launched: LaunchedStep) -> StepResult:
        """The results of a launched step, once the device has them."""
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        errors = dict(launched.errors)
        for readback in launched.samples:
            first = len(token_ids)
            tokens, some_logprobs, some_errors = readback.read()
            token_ids += tokens
            logprobs |= {first + index: value for index, value in some_logprobs.items()}
            errors |= {first + index: error for index, error in some_errors.items()}
        return StepResult(launched.step, token_ids, logprobs, errors, launched.timer.seconds())

    def _graphs_for(self, plan: StepPlan) -> DecodeGraphs | None:
        """Those that run it, if any do."""
        graphs = self._graphs
        return graphs if graphs is not None and not plan.chunks and graphs.covers(len(plan.decode_rows)) else None

    def _logits(self, step: GatheredStep) -> Tensor | None:
        """Of the step's sampling rows, [R, vocab]; None if there are none."""
        hidden = self._decoder(step.inputs, self._attention(step.inputs))
        return self._decoder.logits(hidden) if step.sampled.rows else None

    def _forward(self, inputs: StepInputs, logits: Tensor) -> None:
        self._decoder.logits(self._decoder(inputs, self._attention(inputs)), logits)

    def _attention(self, inputs: StepInputs) -> AttentionContext:
        cache = self._cache
        metadata = tuple(
            self._backend.prepare(inputs, index, cache.block_size, group.window)
            for index, group in enumerate(cache.groups)
        )
        return AttentionContext(self._backend, cache.layers, metadata, self._group_of_layer)

    def _share_tokens(self, step: GatheredStep) -> None:
        """Write what the first rank sampled into the tables of all, so that each can launch the next step."""
        ranks, table = self._decoder.ranks, self._table
        places = step.sampled.rows_device, step.sampled.positions_device
        if not ranks.alone:
            table.write_tokens(*places, ranks.broadcast(table.read_tokens(*places)))

    def _sample(self, logits: Tensor, sampled: SampledRows) -> tuple[list[Readback], dict[int, str]]:
        """Sample all rows; if that fails, one by one, so that only the row at fault ends with an error."""
        count = len(sampled.rows)
        try:
            return [self._sample_together(logits, sampled)], {}
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # the device's state is unknown
        except Exception:
            log.exception("%d rows cannot be sampled together: each is sampled alone", count)
        samples, errors = [], {}
        for index in range(count):
            try:
                samples.append(self._sample_together(logits[index : index + 1], sampled.part(index, index + 1)))
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception as error:
                log.exception("request %s cannot be sampled", self._table.request_id(sampled.rows[index]))
                errors[index] = f"sampling failed: {error}"
                samples.append(Readback(_nothing(logits.device)))
        return samples, errors

    def _sample_together(self, logits: Tensor, rows: SampledRows) -> Readback:
        """Sample `rows` from their `logits` [R, vocab] and write their tokens into the state table."""
        sampled = sample(logits, rows, self._table)
        self._table.write_tokens(rows.rows_device, rows.positions_device, sampled.tokens)
        return Readback(sampled)


def _nothing(device: torch.device) -> Sampled:
    """In the place of a row that could not be sampled."""
    return Sampled(
        torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, dtype=torch.bool, device=device), None
    )
