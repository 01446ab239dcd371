"""The description of a model family: all that differs between families is in these fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A Hugging Face model class this engine computes."""

    architecture: str
    """The class's name in config.json."""
    model_type: str
    read: Callable[[Fields], ModelSpec]
    """Reads the spec from a config.json, or from a GGUF header in its words; ModelLoadError if it is not supported."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that config.json may omit, with the values the family's own configuration class gives them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """The family's own names of fields, and what most families call them."""
    nullable: frozenset[str] = frozenset()
    """Fields in which null is a value of its own, not the default."""
    without_effect: frozenset[str] = frozenset()
    """Fields of other families that its files state, and that change nothing in it."""

    def fields(self, origin: str, config: Mapping[str, Any]) -> Fields:
        """`config` with the family's defaults for what it omits."""
        renamed = {common: config[own] for own, common in self.aliases.items() if config.get(own) is not None}
        config = {**config, **renamed}
        given = {name: value for name, value in config.items() if value is not None}
        defaults = {
            name: value
            for name, value in self.defaults.items()
            if not (name in self.nullable and name in config and config[name] is None)
        }
        if "rope_scaling" in given:  # the older name: all that the file says of RoPE, and no default beside it
            defaults.pop("rope_parameters", None)
        return Fields(origin, {**defaults, **given})
