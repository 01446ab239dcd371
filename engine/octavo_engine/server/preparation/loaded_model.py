"""The data about the loaded model that preparing and answering a request needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from octavo_engine import __version__
from octavo_engine.engine.info import EngineInfo
from octavo_engine.structured.grammar_check import CheckTime
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The model of a request, which keeps this object when the server begins to drain."""

    info: EngineInfo
    tokenizer: Tokenizer
    tool_call_parser: str = "auto"
    """Name of the format of the model's tool calls; `auto`: the chat template shows it."""
    check_time: CheckTime = field(default_factory=CheckTime)
    """The CPU time for checking the request's grammars."""

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint. It changes with the version, the model's files and the way of computing, since
        the same seed may then give another answer."""
        info = self.info
        seen = (__version__, info.model, info.dtype, info.kv_cache_dtype, info.device, info.attention_backend)
        return f"fp_{hashlib.sha256(repr(seen).encode()).hexdigest()[:12]}"
