"""Executes plans on one device: state table, forward pass, sampling."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, LayerCache, StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.core.step import RowResult, ScheduledRow, StepPlan, StepResult
from octavo_engine.model.decoder import Decoder
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.sampler import Sampled, SampleRow, needs_history, sample
from octavo_engine.runner.state_table import StateTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVCache:
    """The paged cache of all layers."""

    groups: tuple[KVGroupSpec, ...]
    block_size: int
    num_blocks: tuple[int, ...]
    """By group."""
    layers: Mapping[int, LayerCache]

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """The index of each layer's group."""
        owner = {layer: index for index, group in enumerate(self.groups) for layer in group.layers}
        return tuple(owner[layer] for layer in sorted(owner))


class Worker:
    """One device's model, cache and state table. Plans are executed in the order they come."""

    def __init__(
        self, decoder: Decoder, backend: AttentionBackend, cache: KVCache, table: StateTable, seed: int
    ) -> None:
        self._decoder = decoder
        self._backend = backend
        self._cache = cache
        self._table = table
        self._seed = seed
        self._group_of_layer = cache.group_of_layer

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step."""
        started = time.perf_counter()
        self._table.apply(plan)
        inputs = gather_inputs(plan, self._table)
        hidden = self._decoder(inputs, self._attention(inputs))
        sampling = [row for row in plan.rows if row.samples]
        results = self._sample(hidden, sampling) if sampling else ()
        return StepResult(plan.step, results, time.perf_counter() - started)

    def _attention(self, inputs: StepInputs) -> AttentionContext:
        cache = self._cache
        metadata = tuple(
            self._backend.prepare(inputs, index, cache.block_size, group.window)
            for index, group in enumerate(cache.groups)
        )
        return AttentionContext(self._backend, cache.layers, metadata, self._group_of_layer)

    def _sample(self, hidden: Tensor, rows: list[ScheduledRow]) -> tuple[RowResult, ...]:
        """Sample all rows; if that fails, one by one, so that only the row at fault ends with an error."""
        try:
            return self._sample_together(hidden, rows)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # the device's state is unknown
        except Exception as error:
            if len(rows) > 1:
                return tuple(self._sample(hidden[i : i + 1], [row])[0] for i, row in enumerate(rows))
            log.exception("request %s cannot be sampled", rows[0].request_id)
            return (RowResult(rows[0].request_id, (), error=f"sampling failed: {error}"),)

    def _sample_together(self, hidden: Tensor, rows: list[ScheduledRow]) -> tuple[RowResult, ...]:
        described = [self._describe(row) for row in rows]
        history = [
            self._table.tokens[row.row, : details.position] if needs_history(details.params) else None
            for row, details in zip(rows, described, strict=True)
        ]
        sampled = sample(self._decoder.logits(hidden), described, history)
        indices = torch.tensor([row.row for row in rows], device=self._table.device)
        positions = torch.tensor([details.position for details in described], device=self._table.device)
        fits = positions < self._table.tokens.shape[1]  # the last token of a full context is never computed on
        self._table.write_tokens(indices[fits], positions[fits], sampled.tokens[fits])
        return _results(rows, sampled)

    def _describe(self, row: ScheduledRow) -> SampleRow:
        params = self._table.sampling[row.row]
        if params is None:
            raise RuntimeError(f"row {row.row} samples before it was begun")
        position = row.start + row.num_tokens
        # Without a seed of its own a request gets the engine's and its id: other requests are other streams.
        seed = params.seed if params.seed is not None else self._seed ^ _hash64(row.request_id)
        return SampleRow(params, seed, position, self._table.prompt_lens[row.row])


def _hash64(text: str) -> int:
    """FNV-1a: the same in every process, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return value


def _results(rows: list[ScheduledRow], sampled: Sampled) -> tuple[RowResult, ...]:
    results = []
    for index, (row, token) in enumerate(zip(rows, sampled.tokens.tolist(), strict=True)):
        if index in sampled.broken:
            results.append(RowResult(row.request_id, (), error="the model gave no finite logits"))
        else:
            logprobs = sampled.logprobs.get(index)
            results.append(RowResult(row.request_id, (token,), (logprobs,) if logprobs else ()))
    return tuple(results)
