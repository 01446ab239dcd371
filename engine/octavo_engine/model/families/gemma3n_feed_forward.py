"""Reads Gemma 3n's feed-forwards: each layer may have its own size, and gates of which only the largest count."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import MLPSpec


def feed_forwards(fields: Fields) -> tuple[MLPSpec, ...]:
    """Return each layer's feed-forward."""
    activation = reading.activation(fields, "hidden_activation")
    return tuple(
        reading.mlp(fields, activation=activation, intermediate_size=size, sparsity=sparsity)
        for size, sparsity in zip(_sizes(fields), _sparsities(fields), strict=True)
    )


def _sizes(fields: Fields) -> list[int]:
    """Return the size of each layer's feed-forward; the file has one for all, or a list."""
    layers, sizes = reading.num_layers(fields), fields.integers("intermediate_size")
    sizes = sizes * layers if len(sizes) == 1 else sizes
    each = (Fields(fields.origin, {"intermediate_size": size}) for size in sizes)
    if len(sizes) != layers:
        raise fields.wrong("intermediate_size", sizes, f"does not name {layers} layers")
    return [reading.intermediate_size(size) for size in each]


def _sparsities(fields: Fields) -> list[float]:
    """Return the sparsity of each layer's gates; by default 0.95 in the first ten of more than ten layers."""
    layers, given = reading.num_layers(fields), fields.values.get("activation_sparsity_pattern")
    if given is None:
        return [0.95 if layer < 10 < layers else 0.0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) != layers:
        raise fields.wrong("activation_sparsity_pattern", given, f"does not name {layers} layers")
    each = (Fields(fields.origin, {"activation_sparsity_pattern": share}) for share in given)
    return [share.number("activation_sparsity_pattern", 0, 0.999) for share in each]
