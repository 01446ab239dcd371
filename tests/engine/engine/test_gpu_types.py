"""GPUs that are too old, or have no FP8: a start says so, or computes in another way. torch's answers are pretended."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from checkpoints import reference_model, save

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup import resolved_config
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, resolve_config
from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.gpu_limits import capability
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    return ModelFiles("test", directory=save(reference_model(hidden_size=64, intermediate_size=128), tmp_path))


def resolve_on(
    found: tuple[int, int], model: ModelFiles, monkeypatch: pytest.MonkeyPatch, **settings: str
) -> ResolvedConfig:
    """Resolve on a GPU of this compute capability."""
    monkeypatch.setattr(resolved_config, "choose_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA T4 or A10")
    capability.cache_clear()
    try:
        return resolve_config(EngineConfig(model="test", **settings), model, Shard(), measure=False)
    finally:
        capability.cache_clear()


def test_a_gpu_older_than_ampere_is_refused(model, monkeypatch):
    with pytest.raises(ConfigurationError) as refused:
        resolve_on((7, 5), model, monkeypatch)
    words = "NVIDIA T4 or A10 has compute capability 7.5, and the kernels need 8.0 (Ampere) or later; use such a GPU"
    assert words in str(refused.value)


@pytest.mark.parametrize(("found", "in_8_bits"), [((8, 6), False), ((8, 9), True)])
def test_weights_in_fp8_are_multiplied_in_16_bits_where_the_gpu_has_no_fp8(
    found, in_8_bits, model, monkeypatch, caplog
):
    with caplog.at_level(logging.INFO):
        resolved = resolve_on(found, model, monkeypatch, dtype="bfloat16", quantization="fp8", kv_cache_dtype="fp8")
    assert resolved.multiplies_fp8 is in_8_bits
    assert resolved.kv_dtype == torch.float8_e4m3fn
    kernels_multiply = {linear.weights.quantized is not None for linear in resolved.blueprint.linears()}
    assert kernels_multiply == {not in_8_bits}
    assert ("does not multiply in FP8" in caplog.text) is not in_8_bits
