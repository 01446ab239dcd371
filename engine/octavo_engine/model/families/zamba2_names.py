"""The tensor names of Zamba2's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames

NAMES = TensorNames(norm="model.final_layernorm")
_ADAPTERS = {
    "self_attn.linear_q_adapter_list": "query",
    "self_attn.linear_k_adapter_list": "key",
    "self_attn.linear_v_adapter_list": "value",
    "feed_forward.gate_up_proj_adapter_list": "gate_up",
}


def stored_names(sources: Mapping[int, int | None]) -> StoredNames:
    """Return how files name the tensors of shared blocks, and of the adapters that layers add to them.

    `sources`: for each layer with a block, the layer whose weights the block has; None: its own. An adapter is stored
    in the block that it is added to, numbered by its layer's place among those with a block.
    """
    adapters = tuple(
        (
            f"model.layers.{layer if source is None else source}.shared_transformer.{stored}.{index}.",
            f"model.layers.{layer}.adapters.{own}.",
        )
        for index, (layer, source) in enumerate(sources.items())
        for stored, own in _ADAPTERS.items()
    )
    mixers = tuple((f"model.layers.{layer}.mamba_decoder.", f"model.layers.{layer}.") for layer in sources)
    copies = [f"model.layers.{layer}.shared_transformer." for layer, source in sources.items() if source is not None]
    others = (f"model.layers.{layer}.shared_transformer.{stored}." for layer in sources for stored in _ADAPTERS)
    return StoredNames(renamed=(*adapters, *mixers), ignored=(*copies, *others))
