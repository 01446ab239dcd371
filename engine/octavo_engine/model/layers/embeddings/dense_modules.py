"""Linear layers after pooling, as sentence-transformers store them in folders of their own (EmbeddingGemma has two), or
as GGUF files have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.file import GGUFFile, GGUFTensor
from octavo_engine.model.gguf.names import DENSE_TENSORS
from octavo_engine.model.gguf.rows import TensorFile, dequantize_rows
from octavo_engine.model.model_file import has_file

_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": torch.nn.Identity,
    "torch.nn.modules.activation.Tanh": torch.nn.Tanh,
    "torch.nn.modules.activation.ReLU": torch.nn.ReLU,
    "torch.nn.modules.activation.GELU": torch.nn.GELU,
}


@dataclass(frozen=True, slots=True)
class DenseModule:
    """One linear layer, as the config.json in its folder describes it."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str
    stored: GGUFTensor | None = None
    """The weight, if it is in a GGUF file; `folder` is then that file."""


def read_dense(folder: Path, config: object) -> DenseModule:
    """Return the module of a folder; ModelLoadError about fields that cannot be used."""
    origin = folder / "config.json"
    if not isinstance(config, dict):
        raise ModelLoadError(f"{origin}: is not an object")
    fields = Fields(str(origin), config)
    activation = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise fields.wrong("activation_function", activation, f"is not supported; supported: {', '.join(_ACTIVATIONS)}")
    inputs, outputs = (fields.integer(name, 1, 1 << 20) for name in ("in_features", "out_features"))
    return DenseModule(folder, inputs, outputs, fields.boolean("bias", True), activation)


def dense_of(file: GGUFFile) -> tuple[DenseModule, ...]:
    """Return the modules in a GGUF file, which have neither a bias nor an activation; none in most files."""
    found = [file.tensors[name] for name in DENSE_TENSORS if name in file.tensors]
    if wrong := next((tensor for tensor in found if len(tensor.shape) != 2), None):
        raise ModelLoadError(f"{wrong.path}: {wrong.name!r} of shape {list(wrong.shape)} is not a matrix")
    identity = "torch.nn.modules.linear.Identity"
    return tuple(
        DenseModule(each.path, each.shape[1], each.shape[0], bias=False, activation=identity, stored=each)
        for each in found
    )


class DenseModules:
    """Linear layers that are applied one after another, in float32; every rank computes all of them."""

    def __init__(self, modules: tuple[DenseModule, ...], device: torch.device) -> None:
        """Read the weights, on `meta` only their sizes; ModelLoadError if they are missing or have other sizes."""
        self._activations = [_ACTIVATIONS[module.activation]() for module in modules]
        self._weights = [_weights(module, device) for module in modules]

    @property
    def nbytes(self) -> int:
        """The bytes of the modules' weights."""
        return sum(tensor.nbytes for pair in self._weights for tensor in pair if tensor is not None)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the result of the last module, [R, out], for vectors [R, in], both float32."""
        for (weight, bias), activation in zip(self._weights, self._activations, strict=True):
            vectors = activation(torch.nn.functional.linear(vectors, weight, bias))
        return vectors


def _weights(module: DenseModule, device: torch.device) -> tuple[Tensor, Tensor | None]:
    path = module.folder / "model.safetensors"
    if device.type == "meta":
        weight = torch.empty(module.outputs, module.inputs, device=device)
        return weight, torch.empty(module.outputs, device=device) if module.bias else None
    if (tensor := module.stored) is not None:
        values = dequantize_rows(TensorFile(tensor.path), tensor, 0, module.outputs)
        return torch.from_numpy(values).to(device, torch.float32), None
    if not has_file(path):
        raise ModelLoadError(f"{path}: there is no such file; fetch the model again")
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from None
    expected: dict[str, tuple[int, ...]] = {"linear.weight": (module.outputs, module.inputs)}
    expected |= {"linear.bias": (module.outputs,)} if module.bias else {}
    if {name: tuple(values.shape) for name, values in stored.items()} != expected:
        raise ModelLoadError(f"{path}: does not hold {', '.join(f'{n} {list(s)}' for n, s in expected.items())} alone")
    bias = stored.get("linear.bias")
    return stored["linear.weight"].to(device, torch.float32), None if bias is None else bias.to(device, torch.float32)
