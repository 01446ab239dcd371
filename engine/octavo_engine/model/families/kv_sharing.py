"""Reads which layers read the KV cache of earlier ones, in the fields of Google's families."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.model.fields import Fields


def sources(fields: Fields, windows: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return for each layer, given their windows, the layer whose cache it reads; None: its own.

    The last `num_kv_shared_layers` layers read the cache of the last layer before them with the same window.
    """
    shared = fields.integer("num_kv_shared_layers", 0, len(windows) - 1, default=0)
    own = windows[: len(windows) - shared]
    if set(windows) - set(own):
        raise fields.wrong("num_kv_shared_layers", shared, "leaves no layer of one type with a cache")
    last = {window: layer for layer, window in enumerate(own)}
    return (*(None for _ in own), *(last[window] for window in windows[len(own) :]))
