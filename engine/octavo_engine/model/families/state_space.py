"""Reads the mixers of families with Mamba or Mamba-2, by the field names of Bamba and Jamba."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import GatedNormSpec, Mamba2Spec, MambaSpec, NormSpec

STATE_SPACE_ALIASES = {
    "state_size": "mamba_d_state",
    "ssm_state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "n_groups": "mamba_n_groups",
    "expand": "mamba_expand",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
    "time_step_rank": "mamba_dt_rank",
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "layer_norm_epsilon": "rms_norm_eps",
}
"""Names of the same fields in Mamba's own config.json and in files that follow it."""
_LEAST_STEP = 0.001
STATE_SPACE_DEFAULTS: Mapping[str, Any] = {
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_n_heads": 128,
    "time_step_min": _LEAST_STEP,
}
NO_LENGTH = {"max_position_embeddings": 1 << 17}
"""The longest context of models that state none; their state has the same size for any."""
_UNLIMITED = ("Infinity", {"__float__": "Infinity"})
_NEVER_REACHED = 1e9
"""A time step above this, with which tools write an unlimited one in JSON, which has no infinity."""


def mamba2(fields: Fields, inner: int | None = None, **values: Any) -> Mamba2Spec:
    """Return Mamba-2's mixer; `inner`: the width of all heads (None: by `mamba_expand`); `values`: further fields."""
    _check_step_limit(fields)
    inner = inner or fields.integer("mamba_expand", 1, 64) * reading.hidden_size(fields)
    heads, groups = fields.integer("mamba_n_heads", 1, 1 << 16), fields.integer("mamba_n_groups", 1, 1 << 16)
    automatic = fields.values.get("mamba_d_head", "auto") == "auto"
    head_dim = inner // heads if automatic else fields.integer("mamba_d_head", 1, 1 << 16)
    if heads * head_dim != inner:
        raise fields.wrong("mamba_n_heads", heads, f"times mamba_d_head {head_dim} is not the inner size {inner}")
    if heads % groups:
        raise fields.wrong("mamba_n_groups", groups, f"does not divide mamba_n_heads {heads}")
    bias = fields.boolean("mamba_proj_bias", False)
    values = {"bias": bias, "output_bias": bias, "norm": GatedNormSpec(eps=reading.rms_norm(fields).eps), **values}
    values.setdefault("activation", None)
    values["activation"] = values["activation"] or reading.activation(fields)
    return Mamba2Spec(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state=fields.integer("mamba_d_state", 1, 1 << 12),
        width=_width(fields),
        conv_bias=fields.boolean("mamba_conv_bias", True),
        **values,
    )


def mamba(fields: Fields, norm: NormSpec | None, channels: int | None = None) -> MambaSpec:
    """Return Mamba's mixer; `norm`: of b, c and the latent of time steps; `channels`: None: by `mamba_expand`."""
    hidden = reading.hidden_size(fields)
    automatic = fields.values.get("mamba_dt_rank", "auto") == "auto"
    return MambaSpec(
        channels=channels or fields.integer("mamba_expand", 1, 64) * hidden,
        state=fields.integer("mamba_d_state", 1, 1 << 12),
        width=_width(fields),
        step_rank=math.ceil(hidden / 16) if automatic else fields.integer("mamba_dt_rank", 1, 1 << 16),
        activation=reading.activation(fields),
        conv_bias=fields.boolean("mamba_conv_bias", True),
        bias=fields.boolean("mamba_proj_bias", False),
        norm=norm,
    )


def least_step(fields: Fields) -> float:
    """Read `time_step_min`; ModelLoadError above 0.001: transformers raises steps to it in prompts, but not in answers.

    At 0.001, which published models have, nothing is raised: neither NVIDIA's own class, nor Zamba2 with its kernels,
    nor vLLM does, and in transformers it changes what Nemotron-H says (huggingface/transformers#48989).
    """
    if (least := fields.number("time_step_min", 0, 1e3)) > _LEAST_STEP:
        raise fields.wrong("time_step_min", least, f"is not supported, only up to {_LEAST_STEP}")
    return least


def attending(fields: Fields, default: Callable[[int], bool], name: str = "layer_types") -> list[bool]:
    """Return for each layer whether it attends: by the field `name`, or by `default` where that is absent."""
    count, kinds = reading.num_layers(fields), fields.values.get(name)
    if kinds is None:
        return [default(layer) for layer in range(count)]
    attention, state = {"full_attention", "attention"}, {"linear_attention", "mamba"}
    if not isinstance(kinds, list) or len(kinds) != count or set(map(str, kinds)) - attention - state:
        raise fields.wrong(name, kinds, f"is not {count} times linear_attention or full_attention")
    return [kind in attention for kind in kinds]


def _width(fields: Fields) -> int:
    return fields.integer("mamba_d_conv", 2, 64)


def _check_step_limit(fields: Fields) -> None:
    """Raise ModelLoadError if time steps are limited: transformers limits them in prompts, but not in answers."""
    limit = fields.values.get("time_step_limit")
    if limit is not None and not (isinstance(limit, list) and len(limit) == 2 and limit[0] == 0 and _unlimited(limit)):
        raise fields.wrong("time_step_limit", limit, "is not supported, only [0, Infinity]")


def _unlimited(limit: list[Any]) -> bool:
    return limit[1] in _UNLIMITED or (type(limit[1]) in (int, float) and limit[1] >= _NEVER_REACHED)
