"""Finds a model's modules by the names that PEFT gives them, and says why other modules cannot have adapters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.names import StoredNames, by_modules
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.lora.expert_targets import ExpertStack, ExpertTarget, expert_stacks
from octavo_engine.model.lora.targets import ModuleShape, TargetChoice, separate_modules

_WRAPPERS = ("base_model.model.", "base_model.")
"""The prefixes that PEFT adds to the names of a model's modules."""
_WRAPPED = ".base_layer"
"""The ending that PEFT adds for each parameter after a module's first one."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """The modules that may have adapters, by the checkpoint's names."""

    shapes: Mapping[str, ModuleShape]
    stored: StoredNames
    refused: Mapping[str, str]
    """The reasons why other modules cannot have adapters, by a part of their names."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The reasons why some of the model's layers cannot have adapters, by their names."""
    stacks: Mapping[str, ExpertStack] = field(default_factory=dict)
    """Modules that hold experts as parameters."""
    renamed: Sequence[tuple[str, str]] = ()
    """Replacements of parts of names, as in `TensorNames.modules`."""
    whole_of: Mapping[str, str] = field(default_factory=dict)
    """For modules whose rows are some of another module's: that module."""
    others: Set[str] = frozenset()
    """The model's modules that are none of these: adapters of them are not supported."""

    def find(self, name: str) -> str:
        """Return the module of a name in an adapter's file; ModelLoadError says why there is none."""
        bare = _bare(name)
        for candidate in self._candidates(bare):
            if candidate in self.shapes:
                return candidate
        if (reason := self._reason(bare)) is not None:
            raise ModelLoadError(f"{bare}: {reason}")
        if self._is_other(bare):
            raise ModelLoadError(f"{bare}: the model has this layer, but it takes no adapters; {self._kinds()} do")
        linears = [known for known in self.shapes if ".experts." not in known]
        near = difflib.get_close_matches(bare, linears, 1)
        hint = f" (the nearest is {near[0]})" if near else ""
        missing = f"the model has no such linear layer{hint}, but {self._kinds()}"
        raise ModelLoadError(f"{bare}: {missing}: is the adapter made for this model?")

    def _is_other(self, bare: str) -> bool:
        """Return True for a module that the model has, or whose tensors in its files are not read."""
        names = list(self._candidates(module_of(bare)))
        return not self.others.isdisjoint(names) or any(self.stored.own(f"{name}.weight") is None for name in names)

    def _kinds(self) -> str:
        """Return the last parts of the names of layers that may have adapters."""
        experts = ["experts"] * any(shape.experts > 1 for shape in self.shapes.values())
        names = {name.rpartition(".")[2] for name in self.shapes if ".experts." not in name}
        return ", ".join(sorted([*names, *experts])) or "none of its layers"

    def _reason(self, bare: str) -> str | None:
        """Return the reason why a module of the model cannot have an adapter; None: there is none."""
        candidates = list(self._candidates(module_of(bare)))
        for name, reason in self.left_out.items():
            if name in candidates or name.rpartition(".")[0] in candidates:
                return reason
        named = [f".{candidate}." for candidate in candidates]
        return next((why for part, why in self.refused.items() if any(f".{part}." in name for name in named)), None)

    def find_stack(self, name: str) -> ExpertStack | None:
        """Return the experts of a layer that a name in an adapter's file means; None: it means no experts."""
        return next((self.stacks[each] for each in self._candidates(module_of(name)) if each in self.stacks), None)

    def _candidates(self, bare: str) -> Iterator[str]:
        text = bare.replace("model.language_model.", "model.").removeprefix("language_model.")
        for each in (bare, self.stored.own(bare), text, self.stored.own(text)):
            if each is not None:
                yield from by_modules(each, self.renamed)


def _bare(name: str) -> str:
    """Return a module's name without PEFT's prefix."""
    return name.removeprefix(next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), ""))


def module_of(name: str) -> str:
    """Return a module's name without PEFT's prefix and endings."""
    bare = _bare(name)
    while bare.endswith(_WRAPPED):
        bare = bare.removesuffix(_WRAPPED)
    return bare


def module_names(decoder: Decoder, choice: TargetChoice) -> ModuleNames:
    """Return the modules that an adapter for this decoder may name."""
    names = decoder.spec.names
    experts = {name: target for name, target in choice.targets.items() if isinstance(target, ExpertTarget)}
    refused = {
        names.head.rpartition(".")[2]: "adapters of the head are not supported",
        names.embedding.rpartition(".")[2]: "adapters of embeddings are not supported",
        "lm_head": "adapters of the head are not supported",
        "experts": "experts that the model has in this form cannot have adapters",
    }
    shapes = {name: target.shape for name, target in choice.targets.items()}
    others = {tensor.name.rpartition(".")[0] for tensor in decoder.tensors() if not tensor.optional} - shapes.keys()
    separate = separate_modules(choice.targets, names)
    return ModuleNames(
        shapes,
        decoder.spec.stored_names,
        refused,
        choice.left_out,
        expert_stacks(experts),
        names.modules,
        whole_of={part: whole for whole, parts in separate.items() for part in parts},
        others=others,
    )
