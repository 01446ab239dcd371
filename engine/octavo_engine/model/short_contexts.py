"""Leaves out what makes no difference in short contexts."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.spec import LatentAttentionSpec, LayerSpec, ModelSpec


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
