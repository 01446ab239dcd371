"""The header of a GGUF file: typed keys, with errors that name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.file import GGUFFile

_MOST = 1 << 22
_NOTHING = (0, 1)
_CHANGES_THE_ANSWER: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": _NOTHING,
    "attention.max_alibi_bias": _NOTHING,
    "attention.scale": _NOTHING,
    "attention.temperature_scale": _NOTHING,
    "attn_logit_softcapping": _NOTHING,
    "embedding_scale": _NOTHING,
    "expert_gating_func": (0, 1),
    "expert_group_count": _NOTHING,
    "expert_weights_scale": _NOTHING,
    "final_logit_softcapping": _NOTHING,
    "logit_scale": _NOTHING,
    "residual_scale": _NOTHING,
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": _NOTHING,
}
"""Keys that change a model's answers whatever the architecture, and their values that do not: a file with another value
is refused if the key is not read."""


@dataclass(frozen=True, slots=True)
class Header:
    """A file's keys. Methods take the names of its architecture's keys without the prefix `<architecture>.`."""

    file: GGUFFile
    fields: Fields

    def key(self, name: str) -> str:
        """Return the full name of a key."""
        return f"{self.file.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Return True if the key is there."""
        return self.fields.has(self.key(name))

    def integer(self, name: str, low: int = 1, high: int = _MOST, **default: int) -> int:
        """Return a whole number in [low, high]; ModelLoadError otherwise."""
        return self.fields.integer(self.key(name), low, high, **default)

    @property
    def num_layers(self) -> int:
        """The number of the model's own layers; ModelLoadError if the file cannot have so many."""
        count = self.integer("block_count", 1, 4096)
        if count > len(self.file.tensors):  # names and shapes of thousands of layers take a minute to compare
            why = f"is more than the {len(self.file.tensors)} tensors of the file"
            raise self.fields.wrong(self.key("block_count"), count, why)
        return count - self.predicting_layers

    @property
    def num_experts(self) -> int:
        """The number of a layer's experts, 0 if there are none; ModelLoadError if the file cannot have so many."""
        count, tensors = self.integer("expert_count", 0, 1 << 16, default=0), self.file.tensors
        stacked = [tensor.shape[0] for name, tensor in tensors.items() if "_exps." in name]
        # Files of 2024 have a tensor for each expert. The names of thousands of experts take seconds to compare.
        most = max(stacked, default=len(tensors))
        if count > max(1, most):
            why = f"is more than the {most} of the file's tensors"
            raise self.fields.wrong(self.key("expert_count"), count, why)
        return count

    def each_layer(self, name: str, default: int | None = None) -> tuple[int, ...]:
        """Return a whole number for each layer, which may be the same for all; ModelLoadError otherwise.

        Without a default the key has to be there.
        """
        count, key = self.integer("block_count", 1, 4096), self.key(name)
        values = self.fields.integers(key) or (self.integer(name) if default is None else default,)
        values = values * count if len(values) == 1 else values
        if len(values) != count or not all(0 <= value <= _MOST for value in values):
            raise self.fields.wrong(key, self.fields.values.get(key), f"is not a number for each of {count} layers")
        return values

    def of_layers(self, name: str, default: int | None = None) -> int:
        """Return the number of all layers that have another than 0, or 0 if none has; ModelLoadError if they differ."""
        found = sorted({value for value in self.each_layer(name, default) if value})
        if len(found) > 1:
            key = self.key(name)
            raise self.fields.wrong(key, self.fields.values.get(key), f"is not supported: layers have {found}")
        return found[0] if found else 0

    def most(self, name: str, default: int | None = None) -> int:
        """Return the largest of the layers' numbers; ModelLoadError as of `each_layer`."""
        return max(self.each_layer(name, default))

    def number(self, name: str, **default: float) -> float:
        """Return a number; ModelLoadError otherwise."""
        return self.fields.number(self.key(name), -1e12, 1e12, **default)

    @property
    def predicting_layers(self) -> int:
        """The last layers of `block_count` that predict further tokens, and that are not read."""
        return self.integer("nextn_predict_layers", 0, 64, default=0)

    def rope_scaling(self) -> tuple[str, float | None]:
        """Return the type of RoPE's scaling, and the factor by which angles are slower, None if there is none.

        As in llama.cpp, a factor without a type is linear scaling's, and 0 means that nothing is scaled; files of 2023
        have the factor as `rope.scale_linear`.
        """
        names = [name for name in ("rope.scaling.factor", "rope.scale_linear") if self.has(name)]
        factor = self.fields.number(self.key(names[0]), 0, 1e6) if names else None
        if factor == 0:
            return "none", None
        return self.fields.text(self.key("rope.scaling.type"), default="linear" if names else "none"), factor

    def given(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the config.json fields whose numbers the header has under other names."""
        return {ours: self.number(theirs) for ours, theirs in names.items() if self.has(theirs)}

    def refuse_unread(self) -> None:
        """Raise ModelLoadError about a key that changes answers and that was not read."""
        # Layers with a window have RoPE of another base, by this key.
        other_base = {"rope.freq_base_swa": (self.number("rope.freq_base", default=1e4),)}
        for name, harmless in {**_CHANGES_THE_ANSWER, **other_base}.items():
            key, value = self.key(name), self.fields.values.get(self.key(name))
            if value is not None and value not in harmless and key not in self.fields.read:
                raise self.fields.wrong(
                    key, value, f"changes answers, and {self.file.architecture} is not computed with it"
                )

    def stored(self, name: str) -> bool:
        """Return True if the first layer has a tensor of this name."""
        return f"blk.0.{name}" in self.file.tensors

    def layers_with(self, name: str) -> list[int]:
        """Return the numbers of the layers that have a tensor of this name."""
        count = self.integer("block_count", 1, 4096)
        return [layer for layer in range(count) if f"blk.{layer}.{name}" in self.file.tensors]
