"""Maps the tensors of a GGUF file to their names in Hugging Face's checkpoints, and stacked experts one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from octavo_engine.model.checkpoint import CheckpointTensor
from octavo_engine.model.gguf.file import GGUFFile, GGUFTensor

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)(\..*)")
_STACKED = re.compile(r"(blk\.\d+\.ffn_\w+_exps)\.(weight|bias)")
_SUFFIXES = (".weight", ".bias")
_READ_WITH_THE_SPEC = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def huggingface_names(file: GGUFFile, num_layers: int, names: Iterable[str]) -> dict[str, str]:
    """Map the names of a GGUF file to those of Hugging Face's `names` (with or without `.weight`) that it has.

    An expert's name has its number after the name of the tensor in which it is stacked.
    """
    import gguf

    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == file.architecture)
    mapping = gguf.get_tensor_name_map(architecture, num_layers)
    names_of_stored: dict[str, str] = {}
    for name in names:
        expert = _EXPERT.fullmatch(name)
        stem, number = (f"{expert[1]}{expert[3]}", f".{expert[2]}") if expert else (name, "")
        bare = stem.removeprefix("transformer.")  # the package has BLOOM's names without this prefix
        theirs = mapping.get_name(stem, _SUFFIXES) or mapping.get_name(bare, _SUFFIXES)
        if theirs is None:
            continue
        theirs, dot, ending = theirs.rpartition(".") if theirs.endswith(_SUFFIXES) else (theirs, "", "")
        stored = f"{theirs}{number}{dot}{ending}"
        if not ending and f"{stored}.weight" in file.tensors:
            stored += ".weight"  # parameters outside modules have no such ending in checkpoints
        names_of_stored[stored] = name
    return names_of_stored


def named_tensors(file: GGUFFile, num_layers: int, expected: Mapping[str, CheckpointTensor]) -> dict[str, GGUFTensor]:
    """Return the file's tensors by Hugging Face's names, by their own where nothing is expected of such a name."""
    names = huggingface_names(file, num_layers, expected)
    tensors: dict[str, GGUFTensor] = {}
    for stored in file.tensors.values():
        if stored.name in _READ_WITH_THE_SPEC:
            continue
        for tensor in _split_experts(stored, names):
            name = names.get(tensor.name, tensor.name)
            shape = expected[name].shape if name in expected else None
            row = shape is not None and shape == (1, *tensor.shape)  # the converter stores one row as a vector
            tensors[name] = replace(tensor, shape=shape) if row and shape is not None else tensor
    return tensors


def _split_experts(stored: GGUFTensor, names: Mapping[str, str]) -> Iterator[GGUFTensor]:
    """Yield each expert's part if experts are expected one by one, else the tensor itself."""
    stacked = _STACKED.fullmatch(stored.name)
    count = stored.shape[0]
    if stacked is None or len(stored.shape) < 2 or f"{stacked[1]}.{count - 1}.{stacked[2]}" not in names:
        yield stored
        return
    size = stored.num_bytes // count
    for number in range(count):
        yield replace(
            stored,
            name=f"{stacked[1]}.{number}.{stacked[2]}",
            shape=stored.shape[1:],
            start=stored.start + number * size,
            num_bytes=size,
        )
