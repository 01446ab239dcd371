"""Maps the tensors of a GGUF file to their names in Hugging Face's checkpoints, and stacked experts one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.model.gguf.file import GGUFFile, GGUFTensor
from octavo_engine.model.gguf.restored import UNCHANGED, Restored

_EXPERT = re.compile(r"(.*\.experts|model\.altup_\w+|.*_layernorm)(?:\.norms)?\.(\d+)(\..*)")
_STACKED = re.compile(r"(blk\.\d+\.(?:ffn|attn)_|altup_)(\w*?)(_exps|_norm|proj)\.(weight|bias)")
"""Experts, StableLM's norms of heads, and Gemma 3n's projections of further vectors."""
_LAYER = re.compile(r"blk\.(\d+)\.")
_OF_EXPERT = re.compile(r"(?<=_exps)\.\d+(?=\.)")
_SUFFIXES = (".weight", ".bias", ".scale")
_ALSO = (
    (re.compile(r"^transformer\."), ""),  # BLOOM
    (re.compile(r"\.dt_bias$"), ".dt_proj.bias"),
    (re.compile(r"_bias$"), ".bias"),
    (re.compile(r"\.router\.scale$"), ".router.proj.scale"),  # Gemma 4's experts, as the next
    (re.compile(r"\.router\.per_expert_scale$"), ".experts.down_proj.scale"),
    (re.compile(r"^model\.layers\."), "backbone.layers."),  # Nemotron-H
    (re.compile(r"\.mixer\."), ".mlp."),  # Nemotron-H's experts
    (re.compile(r"^model\."), ""),  # LFM2's experts
    (re.compile(r"\.mlp\."), ".block_sparse_moe."),  # Kimi Linear's experts
)
"""Parts of names, each with what the package's names have in its place, alone or with others of these."""
_INDEXER = ".indexer."
"""In the names of tensors that choose tokens; layers that use an earlier layer's choice may have them too."""
NAMED_LIKE = {"cohere2moe": "dots1"}
"""Architectures that the package `gguf` does not know, each with one that names tensors in the same way."""
DENSE_TENSORS = ("dense_2.weight", "dense_3.weight")
"""The linear layers after pooling, in order."""
_READ_APART = (
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),  # read with the spec
    *DENSE_TENSORS,
)


def huggingface_names(file: GGUFFile, num_layers: int, names: Iterable[str]) -> dict[str, str]:
    """Map the names of a GGUF file to those of Hugging Face's `names` (with or without `.weight`) that it has.

    An expert's name has its number after the name of the tensor in which it is stacked.
    """
    import gguf

    known = NAMED_LIKE.get(file.architecture, file.architecture)
    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    mapping = gguf.get_tensor_name_map(architecture, num_layers)
    names_of_stored: dict[str, str] = {}
    for name in names:
        expert = _EXPERT.fullmatch(name)
        stem, number = (f"{expert[1]}{expert[3]}", f".{expert[2]}") if expert else (name, "")
        theirs = _first_known(stem, lambda name: mapping.get_name(name, _SUFFIXES))
        if theirs is None:
            continue
        theirs, dot, ending = theirs.rpartition(".") if theirs.endswith(_SUFFIXES) else (theirs, "", "")
        stored = f"{theirs}{number}{dot}{ending}"
        if not ending:  # parameters outside modules have no such ending in checkpoints
            stored += next((suffix for suffix in _SUFFIXES if f"{stored}{suffix}" in file.tensors), "")
        names_of_stored[stored] = name
    return names_of_stored


def _first_known(name: str, find: Callable[[str], str | None]) -> str | None:
    """Return what `find` finds for a name, or for the same name with other parts; None if that is nothing."""
    names = [name]
    if (found := find(name)) is not None:
        return found
    for part, other in _ALSO:
        for changed in [part.sub(other, each) for each in names if part.search(each)]:
            if (found := find(changed)) is not None:
                return found
            names.append(changed)
    return None


def named_tensors(
    file: GGUFFile,
    num_layers: int,
    expected: Mapping[str, CheckpointTensor],
    restored: Callable[[str], Restored] = lambda _name: UNCHANGED,
) -> dict[str, GGUFTensor]:
    """Return the file's tensors by Hugging Face's names, by their own where nothing is expected of such a name.

    `restored`: what is done to the tensor of a name while it is read.
    """
    names = huggingface_names(file, num_layers, expected)
    tensors: dict[str, GGUFTensor] = {}
    for stored in file.tensors.values():
        if stored.name in _READ_APART or _predicts(stored.name, file, num_layers):
            continue
        if _INDEXER in stored.name and stored.name not in names:
            continue
        for tensor in _split_experts(stored, names):
            name = names.get(tensor.name, tensor.name)
            shape = _shape(tensor, expected[name].shape) if name in expected else tensor.shape
            tensors[name] = replace(tensor, shape=shape, restored=restored(name))
    return tensors


def stored_tensor(file: GGUFFile, name: str) -> GGUFTensor | None:
    """Return the tensor that has the weight of this name in the file, all experts' for one expert's; None: none has."""
    stacked = _OF_EXPERT.sub("", name)
    return file.tensors.get(stacked) or file.tensors.get(re.sub(r"(?<=\.ffn_)(gate|up)(?=_exps\.)", "gate_up", stacked))


def _predicts(name: str, file: GGUFFile, num_layers: int) -> bool:
    """Return True for a tensor of the layers behind the model's that predict further tokens."""
    layer = _LAYER.match(name)
    return layer is not None and num_layers <= int(layer[1]) < file.metadata[f"{file.architecture}.block_count"]


def _shape(tensor: GGUFTensor, expected: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape of a tensor without dimensions of size 1 that the converter adds, and with those it leaves out.

    It also stores vectors of groups as matrices with a row for each group.
    """
    sizes = tuple(size for size in tensor.shape if size > 1)
    if expected is None:
        return sizes or (1,)
    same = sizes == tuple(size for size in expected if size > 1) or (
        len(expected) == 1 and tensor.num_elements == expected[0]
    )
    return expected if same else tensor.shape


def _split_experts(stored: GGUFTensor, names: Mapping[str, str]) -> Iterator[GGUFTensor]:
    """Yield each expert's part, or norm's, if they are expected one by one, else the tensor itself.

    Some files have gate and up as one tensor, in which each expert's rows of gate precede those of up.
    """
    stacked = _STACKED.fullmatch(stored.name)
    if stacked is None or len(stored.shape) < 2:
        yield stored
        return
    count, before, after = stored.shape[0], stacked[1], stacked[3]
    roles = ("gate", "up") if stacked[2] == "gate_up" else (stacked[2],)
    if f"{before}{roles[0]}{after}.{count - 1}.{stacked[4]}" not in names or stored.shape[1] % len(roles):
        yield stored
        return
    shape, size = (stored.shape[1] // len(roles), *stored.shape[2:]), stored.num_bytes // count // len(roles)
    for index, (number, role) in enumerate(product(range(count), roles)):
        name, start = f"{before}{role}{after}.{number}.{stacked[4]}", stored.start + index * size
        yield replace(stored, name=name, shape=shape, start=start, num_bytes=size)
