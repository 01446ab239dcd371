"""Selects the quantization scheme: the one that a checkpoint is in, or the one that --quantization asks for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import chain

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.compressed_tensors import read_compressed_tensors
from octavo_engine.model.quantization.module_rules import Quantization, Rule
from octavo_engine.model.quantization.registry import SCHEMES
from octavo_engine.model.quantization.scheme import Scheme, UnsupportedError, unsupported

_SCHEMES: tuple[Scheme, ...] = tuple(
    import_module(f"octavo_engine.model.quantization.{name}").SCHEME for name in SCHEMES
)


def read_quantization(fields: Fields) -> Quantization | None:
    """Read `quantization_config` of a config.json, which old versions of compressed-tensors called
    `compression_config`; ModelLoadError if it is not supported."""
    config = fields.mapping("quantization_config") or fields.mapping("compression_config")
    if config is None:
        return None
    try:
        return _read(config)
    except UnsupportedError as error:
        supported = "; ".join(scheme.supported for scheme in _SCHEMES if scheme.supported)
        raise ModelLoadError(
            f"{error}; supported are {supported}; or take an unquantized checkpoint of the model (--quantization "
            f"{_SCHEMES[0].name} quantizes it while it is loaded), or a .gguf file"
        ) from None


def _read(config: Fields) -> Quantization:
    old = "bitsandbytes" if config.has("load_in_8bit") or config.has("load_in_4bit") else ""  # it wrote no method
    name = config.text("quant_method", default=old)
    if not name:
        raise unsupported(config, "quantization_config has no quant_method, which says how the weights are stored")
    if name == "compressed-tensors":
        return read_compressed_tensors(config, dict(chain(*(scheme.groups.items() for scheme in _SCHEMES))))
    readers = [scheme.readers[name] for scheme in _SCHEMES if name in scheme.readers]
    if not readers:
        raise unsupported(config, f"the weights are quantized ({name}), which this version of Octavo does not support")
    return readers[0](config)


ONLINE = {scheme.name: Quantization(scheme.online, online=True) for scheme in _SCHEMES if scheme.online is not None}
"""The online schemes by their names as values of `--quantization`."""
_ONLINE_HEADS = {scheme.name: scheme.online_head for scheme in _SCHEMES}


def online(name: str, head: str | None) -> Quantization:
    """Return the quantization of `--quantization name` for a model whose head is the module `head` (None: no head)."""
    method = _ONLINE_HEADS[name]
    if method is None or head is None:
        return ONLINE[name]
    return replace(ONLINE[name], kept=(Rule(method=method, names=frozenset({head})),))
