"""What preparing and answering a request needs of the model."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.engine.info import EngineInfo
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What an accepted request uses of the model, also after the server has begun to drain."""

    ready: EngineInfo
    tokenizer: Tokenizer
    tool_call_parser: str = "auto"
    """Name of the format of the model's calls of tools; `auto`: its chat template says."""
