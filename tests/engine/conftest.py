"""Shared fixtures of the engine's tests; also makes the modules in helpers/ importable."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture(scope="module")
def several_threads() -> Iterator[None]:
    """Compute with several threads, as a user's engine does: for tests of kernels that divide their work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(2, len(os.sched_getaffinity(0))))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2_reference() -> Any:
    """SmolLM2 as transformers computes it, in float32."""
    import torch
    import transformers

    from octavo_engine.model.source import resolve_model
    from tests.gguf_reading import quick_gguf

    path = resolve_model("smollm2", None, lambda *_: None).gguf
    assert path is not None
    with quick_gguf():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
    return model.eval()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers with random weights: loads at once, speaks in ids."""
    import torch
    import transformers
    from checkpoints import save_words

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_words(folder, 64)
    return folder
