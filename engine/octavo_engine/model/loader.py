"""Loads checkpoint files into a decoder: checks every tensor's name and shape, then reads it straight into place."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import torch

from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.cpu.pages import use_huge_pages
from octavo_engine.model.checkpoint.progress import Progress
from octavo_engine.model.checkpoint.safetensors_source import SafetensorsSource
from octavo_engine.model.checkpoint.source import CheckpointSource
from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec
from octavo_engine.model.tensor_parallel.collectives import ALONE, Collectives
from octavo_engine.process_setup.freed_memory import return_freed_memory

log = logging.getLogger(__name__)

_SHOWN = 4
"""The most tensors that a message names."""
_COMPARED = 2_000
"""The most names that one name is compared with: with a million in a hostile header it would take minutes."""
_ALIGNMENT = 64
"""The alignment of parameters in bytes: a cache line. Smaller parameters are not moved."""


def load_model(
    files: ModelFiles,
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    ranks: Collectives = ALONE,
) -> Decoder:
    """Return the decoder of `spec` with the weights of `files` in `dtype` on `device`, or one rank's shard of it.

    Nothing is allocated before the headers agree with the spec. ModelLoadError names the tensors that do not.
    """
    source = _source(files, spec)
    blueprint = Decoder(spec, dtype=dtype, device=torch.device("meta"), ranks=ranks)
    expected = {tensor.name: tensor for tensor in blueprint.tensors()}
    _check(source.where, spec, expected, source.shapes(expected))
    decoder = _empty_decoder(spec, dtype, device, ranks)
    with torch.no_grad():
        source.load({tensor.name: tensor for tensor in decoder.tensors()}, progress)
    progress("warmup", 0.0, "arranging the weights for the kernels")
    decoder.prepare()
    return_freed_memory()
    if ranks.shard.rank == 0:
        _log_dequantized(decoder)
    return decoder


def _log_dequantized(decoder: Decoder) -> None:
    """Log which quantizations save memory here but no time, or neither. One linear layer of each width is tried."""
    examples = {(linear.method.name, linear.columns.size): linear for linear in decoder.linears()}
    with torch.no_grad():
        slow = {name for (name, _), linear in examples.items() if linear.dequantizes()}
    if slow:
        log.warning(
            "linear layers in %s are dequantized in each product, as there is no kernel for them on this device: this "
            "saves memory, but usually takes longer than the model in 16 bits (docs/reference/quantization.md)",
            " and ".join(sorted(slow)),
        )
    if large := {name for mixture in decoder.mixtures() for name in mixture.dequantized_from()}:
        log.warning(
            "experts in %s were dequantized while they were loaded, as there is no kernel for them on this device: "
            "they take the memory of the model in %s (docs/reference/quantization.md)",
            " and ".join(sorted(large)),
            str(decoder.dtype).removeprefix("torch."),
        )


def _source(files: ModelFiles, spec: ModelSpec) -> CheckpointSource:
    if files.gguf is not None:
        from octavo_engine.model.gguf.source import GGUFSource

        return GGUFSource(files.gguf, spec)
    if files.directory is None:
        raise ModelLoadError(f"{files.name}: no files to read")
    return SafetensorsSource(files.directory, spec.stored_names, spec.names)


def _empty_decoder(spec: ModelSpec, dtype: torch.dtype, device: torch.device, ranks: Collectives) -> Decoder:
    """Return a decoder whose parameters are not filled yet; on a CPU they are contiguous, for huge pages."""
    decoder = Decoder(spec, dtype=dtype, device=device, ranks=ranks)
    if device.type != "cpu":
        return decoder
    parameters = [parameter for parameter in decoder.parameters() if parameter.nbytes >= _ALIGNMENT]
    starts = [0, *accumulate(-(-parameter.nbytes // _ALIGNMENT) * _ALIGNMENT for parameter in parameters)]
    memory = torch.empty(starts[-1], dtype=torch.uint8)
    use_huge_pages(memory)
    for parameter, start in zip(parameters, starts[:-1], strict=True):
        parameter.data = memory[start : start + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
    return decoder


def _check(
    where: Path, spec: ModelSpec, expected: Mapping[str, CheckpointTensor], found: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise ModelLoadError unless the checkpoint holds exactly the expected tensors, in the expected shapes."""
    _check_names(where, spec, expected, found)
    wrong = [
        f"{name} is {list(_counted(found[name], tensor))}, expected {list(_counted(tensor.shape, tensor))}"
        for name, tensor in expected.items()
        if tensor.shape is not None
        and name in found
        and _counted(found[name], tensor) != _counted(tensor.shape, tensor)
    ]
    if wrong:
        raise ModelLoadError(f"{where}: the weights do not have the shapes of the configuration: {_some(wrong)}")


def _check_names(
    where: Path, spec: ModelSpec, expected: Mapping[str, CheckpointTensor], found: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise ModelLoadError, with the most similar names, unless the checkpoint holds exactly the expected tensors."""
    needed = [name for name, tensor in expected.items() if not tensor.optional]
    missing = [name for name in needed if name not in found]
    unexpected = [name for name in found if name not in expected]
    if missing:
        named = _some(_with_nearest(missing, unexpected, "there is"))
        raise ModelLoadError(f"{where}: {len(missing)} of {len(needed)} tensors are missing: {named}")
    if unexpected:
        named = _some(_with_nearest(unexpected, list(expected), "the nearest supported is"))
        raise ModelLoadError(
            f"{where}: {len(unexpected)} tensors that {spec.architecture} with this configuration does not have, so "
            f"its answers would be wrong: {named}"
        )


def _with_nearest(names: list[str], others: list[str], relation: str) -> list[str]:
    """Return the first few `names`, each with the most similar one of the first `others`, for an error message."""
    nearest = [difflib.get_close_matches(name, others[:_COMPARED], 1) for name in names[:_SHOWN]]
    shown = [f"{name} ({relation} {near[0]})" if near else name for name, near in zip(names, nearest, strict=False)]
    return shown + names[_SHOWN:]


def _counted(shape: tuple[int, ...], tensor: CheckpointTensor) -> tuple[int, ...]:
    """Return the dimensions of a stored shape, without those of size 1 if they do not count."""
    return tuple(size for size in shape if size != 1) if tensor.squeezed else tuple(shape)


def _some(items: list[str]) -> str:
    return "; ".join(items[:_SHOWN]) + (f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")
