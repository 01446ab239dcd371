"""Leaves out indexers that would choose every token of short contexts, and says which models need whole prompts."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.spec import CompressedAttentionSpec, LatentAttentionSpec, LayerSpec, Mixer, ModelSpec

_FEWEST_HEADS = 8
"""The heads from which an indexer seldom gives two tokens the same score; published models have 32 or 64."""


def for_contexts(spec: ModelSpec, longest: int | None) -> ModelSpec:
    """Return `spec` for contexts of at most `longest` tokens, without indexers that would choose all of them.

    Attention backends then compute attention, and the indexers' tensors are not read. None: contexts of any length.
    """
    layers = tuple(_without_index(layer, longest) for layer in spec.layers)
    names, without = spec.names, [old is not new for old, new in zip(spec.layers, layers, strict=True)]
    unread = (f"{names.of_layer('attention', layer)}.indexer." for layer, each in enumerate(without) if each)
    stored = spec.stored_names
    return replace(spec, layers=layers, stored_names=replace(stored, ignored=(*stored.ignored, *unread)))


def _without_index(layer: LayerSpec, longest: int | None) -> LayerSpec:
    mixer = layer.mixer
    if longest is None or not isinstance(mixer, LatentAttentionSpec) or mixer.index is None:
        return layer
    return replace(layer, mixer=replace(mixer, index=None)) if longest <= mixer.index.kept else layer


def needs_whole_prompts(spec: ModelSpec) -> bool:
    """Return True if a prompt has to be computed in one step, and none of it may come from the prefix cache.

    Either its first tokens attend to its last ones, or an indexer has few heads. A token that no head of an indexer
    matches has the score 0. With few heads that is true for many tokens, and which of them `topk` takes depends on how
    many tokens a step computes.
    """
    return not spec.causal or any(_may_tie(layer.mixer, spec.max_position) for layer in spec.layers)


def _may_tie(mixer: Mixer | None, longest: int) -> bool:
    if isinstance(mixer, LatentAttentionSpec) and mixer.index is not None:
        return mixer.index.num_heads < _FEWEST_HEADS and mixer.index.kept < longest
    compressor = mixer.compressor if isinstance(mixer, CompressedAttentionSpec) else None
    if compressor is None or compressor.indexer is None:
        return False
    return compressor.indexer.num_heads < _FEWEST_HEADS and compressor.indexer.kept * compressor.rate < longest
