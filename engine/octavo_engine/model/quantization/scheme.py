"""The record by which a quantization scheme's file registers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.module_rules import Quantization


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization scheme: the checkpoints and the flag that select it, and its linear methods."""

    name: str
    """The name for `--quantization`, where the scheme can quantize while weights are loaded."""
    online: LinearMethod | None
    """The method with which the flag quantizes weights of 16 or 32 bits while they are loaded."""
    supported: str
    """The checkpoints that are read, for messages."""
    _: KW_ONLY
    online_head: LinearMethod | None = None
    """The method with which the flag quantizes the head, where a device computes with its codes; None: not at all."""
    readers: Mapping[str, Callable[[Fields], Quantization]] = field(default_factory=dict)
    """Readers of `quantization_config` by config.json's `quant_method`; they raise ModelLoadError (`unsupported`) for
    anything that is not supported."""
    groups: Mapping[str, Callable[[Fields, Fields], LinearMethod]] = field(default_factory=dict)
    """Readers of compressed-tensors' groups by `format`, given one of its `config_groups` and the `weights` in that."""


class UnsupportedError(ModelLoadError):
    """A quantized checkpoint of an unsupported kind; select.py adds the supported ones to the message."""


def unsupported(config: Fields, what: str) -> UnsupportedError:
    """Return the error to raise about a `quantization_config`."""
    return UnsupportedError(f"{config.origin}: {what}")
