"""The loaded model, as preparing and answering a request needs it."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.engine.info import EngineInfo
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The model of an accepted request, which keeps it when the server has begun to drain."""

    ready: EngineInfo
    tokenizer: Tokenizer
    tool_call_parser: str = "auto"
    """Name of the format of the model's calls of tools; `auto`: its chat template says."""
