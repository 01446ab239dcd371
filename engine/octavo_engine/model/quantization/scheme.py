"""What a quantization scheme's file gives to the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.linear_method import LinearMethod


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to store weights: who says so, in a checkpoint or by a flag."""

    name: str
    """That of `--quantization`, where the scheme can quantize while weights are loaded."""
    readers: Mapping[str, Callable[[Fields], LinearMethod | None]]
    """By config.json's `quant_method`: what `quantization_config` says, ModelLoadError (`unsupported`) if that is not
    computed here; None: it is another scheme's."""
    online: LinearMethod | None
    """What the flag makes of weights in 16 or 32 bits."""
    supported: str
    """Which checkpoints are read, for messages."""


class UnsupportedError(ModelLoadError):
    """A quantized checkpoint of a kind that is not computed; the registry adds what is."""


def unsupported(config: Fields, what: str) -> UnsupportedError:
    """The error to raise about a `quantization_config`."""
    return UnsupportedError(f"{config.origin}: {what}")
