"""The loaded model, as preparing and answering a request needs it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from octavo_engine import __version__
from octavo_engine.engine.info import EngineInfo
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The model of an accepted request, which keeps it when the server has begun to drain."""

    ready: EngineInfo
    tokenizer: Tokenizer
    tool_call_parser: str = "auto"
    """Name of the format of the model's calls of tools; `auto`: its chat template says."""

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: a seed may give another answer once the version, the model's files or the way
        of computing have changed, and then it is another one."""
        info = self.ready
        seen = (__version__, info.model, info.dtype, info.kv_cache_dtype, info.device, info.attention_backend)
        return f"fp_{hashlib.sha256(repr(seen).encode()).hexdigest()[:12]}"
