"""Computes steps of decodes in one call of the C kernels, where they know all of the decoder."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend
from octavo_engine.attention.context import StepContext
from octavo_engine.core.step import StepPlan
from octavo_engine.kernels.cpu.decode import CPUDecodes, DecoderEnds, StateTensors
from octavo_engine.kernels.cpu.layers import CPULayers, LinearWeights
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.embeddings.embedding import Head, VocabularyWeight
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.operations.fused import FusedLayers, kernels_know_ends
from octavo_engine.runner.device_copies import to_device
from octavo_engine.runner.inputs import decode_tokens
from octavo_engine.runner.kv_cache import KVCache
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable


class Decodes:
    """Steps of decodes alone; their logits are the same bits as those of the decoder."""

    def __init__(self, decoder: Decoder, runner: FusedLayers, context: StepContext, table: StateTable) -> None:
        """`context`: with the caches, of no step."""
        self._decoder, self._runner, self._context, self._table = decoder, runner, context, table
        self._layers: CPULayers | None = None
        self._computed: CPUDecodes | None = None

    @classmethod
    def of(cls, decoder: Decoder, backend: AttentionBackend, cache: KVCache, table: StateTable) -> Decodes | None:
        """Return what computes a decoder's steps of decodes; None if the kernels do not know all of it."""
        runner = decoder.compute.runner
        if not isinstance(runner, FusedLayers) or not decoder.ranks.alone or table.long_rows is not None:
            return None
        if not kernels_know_ends(decoder.spec):
            return None
        return cls(decoder, runner, StepContext(backend, cache.layers, (), cache.group_of_layer), table)

    def __call__(self, plan: StepPlan, out: Tensor | None = None) -> tuple[SampledRows, Tensor] | None:
        """Return the places that a plan samples and their logits [R, vocab], the first rows of `out` if it is given.

        None: the step is not one of decodes alone, or the kernels do not compute so many. No token has an adapter.
        """
        if plan.chunks:
            return None
        layers = self._runner.described(self._decoder.decoder_layers, self._context, plan.num_decode_tokens)
        if layers is None:
            return None
        rows, starts = decode_tokens(plan)
        ends = [start + 1 for start in starts]
        columns = to_device([*rows, *starts, *ends], self._table.device).view(3, -1)
        rope = self._decoder.rotations()[0](columns[1])
        logits = self._for(layers)(
            columns[0], columns[1], rope.cos, rope.sin, None if out is None else out[: len(rows)]
        )
        return SampledRows(rows, ends, columns[0], columns[2]), logits

    def _for(self, layers: CPULayers) -> CPUDecodes:
        """Return the decoder as the kernels read it, described anew if its layers were."""
        if self._computed is None or layers is not self._layers:
            decoder, table = self._decoder, self._table
            norm, head = cast("Norm", decoder.norm), cast("Head", decoder.head)
            ends = DecoderEnds(_weight(decoder.input.tokens), norm.weight, _weight(head))
            windows = [group.window for group in decoder.kv_groups]
            state = StateTensors(table.tokens, table.block_tables, windows)
            self._layers, self._computed = layers, CPUDecodes(self._runner.kernels, layers, ends, state)
        return self._computed


def _weight(vocabulary: VocabularyWeight) -> LinearWeights:
    return LinearWeights(vocabulary.weight if vocabulary.quantized is None else vocabulary.quantized, None)
