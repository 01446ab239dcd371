"""A family's model as transformers computes it, and its checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpoints import SIZES, reference_model, save, save_words
from family_cases import CASES, PUBLISHED, Case

from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec

COMMON = {"max_position_embeddings": 4096, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "hidden_act": "silu"}


@dataclass(frozen=True)
class Pair:
    """The reference and its checkpoint."""

    case: Case
    model: Any
    directory: Path

    @property
    def files(self) -> ModelFiles:
        return ModelFiles("test", directory=self.directory)


def make_pair(name: str, folder: Path) -> Pair:
    """A case's model with weights drawn at random, without ends of sequence, saved with a tokenizer."""
    case = CASES[name]
    no_ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    model = reference_model(case.family, std=case.std, **{**no_ends, **case.changes})
    model.set_experts_implementation("eager")  # the others take no rows of 35 numbers
    directory = save(model, folder / name)
    save_words(directory, SIZES["vocab_size"])
    return Pair(case, model, directory)


def spec_of(directory: Path, architecture: str, **changes: Any) -> ModelSpec:
    """Read a published config.json with some fields changed; `...` removes a field."""
    config = {**COMMON, **PUBLISHED.get(architecture, ({}, 0))[0], "architectures": [architecture], **changes}
    kept = {name: value for name, value in config.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(kept))
    return read_spec(ModelFiles("test", directory=directory))


CPU = torch.device("cpu")


def load(pair: Pair, dtype: torch.dtype) -> Any:
    return load_model(pair.files, read_spec(pair.files), CPU, dtype, lambda *_: None)
