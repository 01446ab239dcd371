"""Loads small checkpoints on the CPU, as they are or quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles

CPU = torch.device("cpu")


def load(path: Path, quantization: str | None = None, dtype: torch.dtype = torch.float32, **ranks: Any) -> Decoder:
    gguf = path if path.suffix == ".gguf" else None
    files = ModelFiles("test", gguf=gguf) if gguf else ModelFiles("test", directory=path)
    return load_model(files, quantized_online(read_spec(files), quantization), CPU, dtype, lambda *_: None, **ranks)


def linears(decoder: Decoder) -> list[Linear]:
    return [module for module in decoder.modules() if isinstance(module, Linear)]
