"""Describes what the engine needs to know of a model family in order to read its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model class of transformers that this engine computes."""

    architecture: str
    """The name of the class, as `architectures` in config.json has it."""
    model_type: str
    read: Callable[[Fields], ModelSpec]
    """Returns the spec of a config.json, or of a GGUF header translated to its fields; may raise ModelLoadError."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that config.json may omit, with the values the family's own configuration class gives them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """The family's own names of fields, each with the name that most families have for it."""
    nullable: frozenset[str] = frozenset()
    """Fields in which null is a value of its own, not the default."""
    without_effect: frozenset[str] = frozenset()
    """Fields that the family's files may state although they change nothing in it."""
    left_out: frozenset[str] = frozenset()
    """Fields of other families that transformers does not read in this one: `read` gets the fields without them."""

    def fields(self, origin: str, config: Mapping[str, Any]) -> Fields:
        """Return the fields of `config`, with the family's defaults for those that it omits.

        ModelLoadError if the older and the newer field about RoPE contradict each other: what transformers makes of
        both differs by family.
        """
        config = {name: value for name, value in config.items() if name not in self.left_out}
        renamed = {common: config[own] for own, common in self.aliases.items() if config.get(own) is not None}
        config = {**config, **renamed}
        present = {name: value for name, value in config.items() if value is not None}
        defaults = {
            name: value
            for name, value in self.defaults.items()
            if not (name in self.nullable and name in config and config[name] is None)
        }
        if "rope_scaling" in present:  # the older field for all of RoPE: no default is added to it
            defaults.pop("rope_parameters", None)
        nulls = frozenset(name for name, value in config.items() if value is None)
        fields = Fields(origin, {**defaults, **present}, nulls=nulls)
        if _contradict(present.get("rope_scaling"), present.get("rope_parameters"), fields.values.get("rope_theta")):
            raise fields.wrong("rope_scaling", present["rope_scaling"], "is not what rope_parameters says")
        return fields


def _contradict(scaling: Any, parameters: Any, theta: Any) -> bool:
    """Return True if both objects are given and say different things; `theta` is the base beside them."""
    if not (isinstance(scaling, Mapping) and isinstance(parameters, Mapping) and scaling and parameters):
        return False
    base = parameters.get("rope_theta") if theta is None else theta
    return _plain({"rope_theta": base, **scaling}) != _plain(parameters)


def _plain(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its type under one name: `type` is the older one, and `mrope` is `default` for text."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return {**rope, "rope_type": "default" if kind == "mrope" else kind, "type": None}
