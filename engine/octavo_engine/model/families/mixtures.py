"""Reads mixtures of experts and their routers, for the families that have them; errors are ModelLoadError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    ExpertGroups,
    FeedForward,
    LayerSpec,
    MoESpec,
    NormSpec,
    RouterSpec,
    SharedExpertSpec,
)


def experts(
    fields: Fields,
    router: RouterSpec,
    *,
    count: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    size: str = "moe_intermediate_size",
    **values: Any,
) -> MoESpec:
    """Return a layer's experts; `count`, `top_k` and `size` are names of fields, `values` further fields of MoESpec."""
    values.setdefault("activation", reading.activation(fields))
    number = reading.num_experts(fields, count if fields.has(count) else "num_local_experts")
    chosen = fields.integer(top_k, 1, number + values.get("zero_experts", 0))
    if router.groups is not None:
        _check_groups(fields, router.groups, number, chosen)
    return MoESpec(
        num_experts=number,
        top_k=chosen,
        intermediate_size=reading.intermediate_size(fields, size),
        router=router,
        **values,
    )


def shared(fields: Fields, count: str, size: str = "moe_intermediate_size", **values: Any) -> SharedExpertSpec | None:
    """Return `count` shared experts as one feed-forward of their summed width, which is equivalent.

    `values` are fields of the feed-forward.
    """
    number = fields.integer(count, 0, 1 << 10)
    width = number * reading.intermediate_size(fields, size)
    return SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=width, **values)) if number else None


def sigmoid_router(fields: Fields) -> RouterSpec:
    """Return DeepSeek V3's router: sigmoid scores, a correction bias, and experts from the best groups alone."""
    count, kept = fields.integer("n_group", 1, 1 << 16), fields.integer("topk_group", 1, 1 << 16)
    return RouterSpec(
        scores="sigmoid",
        correction_bias=True,
        groups=None if count == 1 else ExpertGroups(count=count, kept=kept, best=2),
        renormalize=fields.boolean("norm_topk_prob", True),
        sum_offset=1e-20,
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
        in_float32=True,
    )


def deepseek_experts(fields: Fields) -> MoESpec:
    """Return experts of DeepSeek V3's shape, which other families have, too: its router, and shared experts."""
    router, beside = sigmoid_router(fields), shared(fields, "n_shared_experts")
    return experts(fields, router, count="n_routed_experts", shared=beside)


def layers(
    mixers: Sequence[AttentionSpec], feed_forward: Callable[[int], FeedForward], norm: NormSpec
) -> tuple[LayerSpec, ...]:
    """Return layers with these mixers, each with its own number's feed-forward and `norm` before both."""
    norms = reading.norms_before(norm)
    return tuple(
        LayerSpec(mixer=mixer, feed_forward=feed_forward(layer), norms=norms) for layer, mixer in enumerate(mixers)
    )


def after_dense(fields: Fields, moe: MoESpec, name: str = "first_k_dense_replace") -> Callable[[int], FeedForward]:
    """Return each layer's feed-forward: dense in the first layers, as many as the field `name` says, then `moe`."""
    first = fields.integer(name, 0, 1 << 16)
    dense = reading.mlp(fields) if first else None
    return lambda layer: dense if dense is not None and layer < first else moe


def by_type(fields: Fields, moe: MoESpec, first_dense: int, **values: Any) -> Callable[[int], FeedForward]:
    """Return each layer's feed-forward by `mlp_layer_types`; without that field the first layers are dense.

    `values` are fields of the dense ones.
    """
    types = layer_types(fields, first_dense)
    dense = reading.mlp(fields, **values) if "dense" in types else None
    return lambda layer: dense if dense is not None and types[layer] == "dense" else moe


def layer_types(fields: Fields, first_dense: int) -> list[str]:
    """Return `mlp_layer_types`, `dense` or `sparse` for each layer; without it the first `first_dense` are dense."""
    count, types = reading.num_layers(fields), fields.values.get("mlp_layer_types")
    if types is None:
        types = ["dense" if layer < first_dense else "sparse" for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or set(map(str, types)) - {"dense", "sparse"}:
        raise fields.wrong("mlp_layer_types", types, f"is not {count} times dense or sparse")
    return types


def _check_groups(fields: Fields, groups: ExpertGroups, experts: int, top_k: int) -> None:
    size = experts // groups.count
    if experts % groups.count or size < groups.best:
        raise fields.wrong(
            "n_group", groups.count, f"does not cut {experts} experts into groups of {groups.best} or more"
        )
    if groups.kept > groups.count or groups.kept * size < top_k:
        raise fields.wrong("topk_group", groups.kept, f"groups of {size} do not hold {top_k} experts")
