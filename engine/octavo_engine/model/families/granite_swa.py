"""Granite with sliding windows, of IBM: it also has attention sinks, and a RoPE base for each layer.

A base of 0 says that the layer has no RoPE. By default three of four layers have a window.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.families import granite, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    return granite.model(fields, GRANITE_SWA.architecture, mixers_with_windows(fields), granite.mlp(fields))


def mixers_with_windows(fields: Fields) -> tuple[AttentionSpec, ...]:
    """Return each layer's attention, with sinks, most with a window, and with its own RoPE base if the file has one."""
    windows = reading.windows(fields, default=lambda layer: layer % 4 != 0)
    mixers = tuple(granite.mixer(fields, sinks=True, window=window) for window in windows)
    if (thetas := fields.values.get("layer_rope_theta")) is not None:
        if not isinstance(thetas, list) or len(thetas) != len(windows) or not all(map(_is_theta, thetas)):
            raise fields.wrong("layer_rope_theta", thetas, f"is not {len(windows)} numbers, each 0 or at least 1")
        mixers = tuple(
            reading.with_rope(each, theta=float(theta)) if theta else reading.without_rope(each)
            for each, theta in zip(mixers, thetas, strict=True)
        )
    return mixers


def _is_theta(value: Any) -> bool:
    return value in (None, 0) or (isinstance(value, int | float) and 1 <= value <= 1e12)


GRANITE_SWA = Family(
    architecture="GraniteSWAForCausalLM",
    model_type="granite_swa",
    read=_read,
    defaults={
        **granite.DEFAULTS,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "sliding_window": 128,
        "tie_word_embeddings": True,
        "eos_token_id": 100257,
    },
)
