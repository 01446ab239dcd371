"""Finds a checkpoint's tensors in files with the names of transformers' modules, which hold all experts in one tensor.

transformers writes such files with `save_pretrained(save_original_format=False)`. Most published files have a tensor
for each projection of each expert instead, and some have one for each convolution of query, key and value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from octavo_engine.model.checkpoint.names import TensorNames, by_modules
from octavo_engine.model.checkpoint.safetensors_file import TensorHeader
from octavo_engine.model.checkpoint.tensors import CheckpointTensor

_FUSED = re.compile(r"(?P<module>.+)\.(?P<projection>gate_up_proj|up_proj|down_proj)(?:_(?P<kind>[a-z_]+))?")
"""The name of a parameter of all experts: gate and up, or up alone, or down; a weight, or what `kind` says."""

_CONV, _CONVS = ".conv1d.weight", (".q_conv1d.weight", ".k_conv1d.weight", ".v_conv1d.weight")
Index = tuple[int | slice, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the checkpoint in the files: a stored tensor, or rows of one, or one expert's rows of one."""

    name: str
    """The stored tensor's name."""
    shape: tuple[int, ...]
    num_bytes: int
    expert: int | None = None
    """The index in the first dimension of a stored tensor of all experts."""
    first_row: int = 0
    """The index of this tensor's first row in the stored tensor, or among the expert's."""
    whole: bool = True
    """Whether the stored tensor holds nothing else."""

    def index(self, part: tuple[slice, ...]) -> Index:
        """Return the index in the stored tensor of a part of this one, given by its first dimensions."""
        before = () if self.expert is None else (self.expert,)
        if not self.shape:
            return before
        rows = part[0] if part else slice(0, self.shape[0])
        return *before, slice(self.first_row + rows.start, self.first_row + rows.stop), *part[1:]


def stored_tensors(
    stored: str, own: str, header: TensorHeader, expected: Mapping[str, CheckpointTensor], names: TensorNames
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the tensors of the checkpoint that one of the files is or holds, by their names in `expected`.

    `own` is the name that the stored tensor has in `TensorNames`. If it is not expected, it may be a module's of
    transformers. If that is not expected either, the tensor is yielded as `own`.
    """
    whole = StoredTensor(stored, header.shape, header.num_bytes)
    for name in by_modules(own, names.modules):
        if name in expected:
            yield name, whole
            return
        parts = dict(_experts(name, whole, expected, names)) or dict(_convolutions(name, whole, expected))
        if parts:
            yield from parts.items()
            return
    yield own, whole


def _experts(
    name: str, whole: StoredTensor, expected: Mapping[str, CheckpointTensor], names: TensorNames
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield each expert's projections that the tensor `name` of all experts holds, if it is one: rows of gate before
    those of up, as in all classes of transformers whose published files have experts one by one."""
    match = _FUSED.fullmatch(name)
    if match is None or "{expert}" not in names.expert_up or names.expert_layout != "rows" or not whole.shape:
        return
    roles = {"gate_up_proj": ("expert_gate", "expert_up"), "up_proj": ("expert_up",), "down_proj": ("expert_down",)}
    projections = [getattr(names, role).rpartition("{expert}.")[2] for role in roles[match["projection"]]]
    count, *shape = whole.shape
    if not count or (shape and shape[0] % len(projections)):
        return
    kind = {None: "weight", "bias": "bias"}.get(match["kind"], f"weight_{match['kind']}")
    kind = "activation_scale" if kind == "weight_activation_scale" else kind
    if f"{match['module']}.{count - 1}.{projections[0]}.{kind}" not in expected:
        return  # a hostile header may say that there are billions
    rows = shape[0] // len(projections) if shape else 0
    own_shape, num_bytes = (rows, *shape[1:]) if shape else (), whole.num_bytes // (count * len(projections))
    for expert in range(count):
        for number, projection in enumerate(projections):
            part = StoredTensor(whole.name, own_shape, num_bytes, expert, number * rows, whole=False)
            yield f"{match['module']}.{expert}.{projection}.{kind}", part


def _convolutions(
    name: str, whole: StoredTensor, expected: Mapping[str, CheckpointTensor]
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the convolutions of query, key and value, whose rows follow one another in the tensor `name`."""
    parts = [name.removesuffix(_CONV) + end for end in _CONVS]
    shapes = [expected[part].shape for part in parts if name.endswith(_CONV) and part in expected]
    if len(shapes) < len(parts) or not whole.shape:
        return
    total, first = whole.shape[0], 0
    if all(shapes) and sum(shape[0] for shape in shapes if shape) != total:
        return
    third = -(-total // len(parts))  # OLMo Hybrid's own tensors may have a third of all rows each
    for part, shape in zip(parts, shapes, strict=True):
        rows = min(shape[0] if shape else third, total - first)
        own_shape, num_bytes = (rows, *whole.shape[1:]), whole.num_bytes * rows // max(1, total)
        yield part, StoredTensor(whole.name, own_shape, num_bytes, None, first, whole=False)
        first += rows
