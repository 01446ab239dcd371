"""transformers models of many families as GGUF files, with the keys and tensors of llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf.constants import GGMLQuantizationType as Kind

from gguf_families import case
from gguf_families.dense import DENSE
from gguf_families.experts import EXPERTS
from gguf_families.gemma import GEMMA
from gguf_families.hybrid import HYBRID
from gguf_families.latent import LATENT
from gguf_families.layer_norm import LAYER_NORM

CASES: dict[str, case.Case] = {**DENSE, **EXPERTS, **GEMMA, **HYBRID, **LATENT, **LAYER_NORM}
"""By the architecture's name, and what is special after a comma."""


def write_case(model: Any, path: Path, name: str, kind: Kind = Kind.F32) -> Path:
    """`model`, which is of the case's family, as a file whose matrices are of a type."""
    return case.write(model, path, name.partition(",")[0], CASES[name], kind)
