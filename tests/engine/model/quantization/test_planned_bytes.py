"""The weights' bytes in `plan`, compared with the tensors of loaded checkpoints of each scheme, experts and latents
included."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fp8_checkpoints
import gguf_writer
import grouped_checkpoints
import pytest
import torch
from checkpoints import reference_model, save
from gguf.constants import GGMLQuantizationType as Kind
from gguf_families import write_case
from gguf_writer import random_blocks, write_gguf
from quantized_pairs import save_pair

from bench.gpu.shapes import TINY_GPT_OSS, write_checkpoint
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup import worker_setup
from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.engine.startup.sizing import size_engine
from octavo_engine.engine.startup.worker_setup import WorkerSetup
from octavo_engine.model import footprint
from octavo_engine.model.configuration import gguf_blocks
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard

LARGE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
BLOCKS = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)
ONLY_READ = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS)
"""Formats that gguf's library does not write, most of them with blocks of 256 columns."""
TOLERANCE = 0.03
CASES = [
    *((f"grouped {name}", None) for name in grouped_checkpoints.FORMATS),
    *((f"fp8 {name}", None) for name in fp8_checkpoints.FORMATS),
    *(("plain", flag) for flag in (None, "fp8", "int8", "int4")),
    *((f"gguf {kind.name}", "gguf") for kind in BLOCKS),
    *((f"gguf {kind.name}", "gguf") for kind in ONLY_READ),
    ("mixture", "gguf"),
    *((f"experts {name}", None) for name in ("gptq", "awq", "deepseek", "nvfp4")),
    *((f"latents {name}", None) for name in ("awq", "deepseek")),
    ("experts mxfp4", None),
]
HALF = ("plain", "grouped gptq", "grouped nvfp4", "fp8 deepseek", "gguf Q4_0", "gguf Q6_K", "experts mxfp4")
"""Computed in bfloat16 as well, for which weights are put into another order."""


@pytest.fixture(scope="module")
def new_tensors() -> Iterator[None]:
    """Let `gc` know of what is made from here on alone, so that looking through it takes no time."""
    reference_model()  # which imports the most of what it would look through
    gc.freeze()
    yield
    gc.unfreeze()


def files_of(name: str, directory: Path) -> ModelFiles:
    scheme, _, form = name.partition(" ")
    if name == "experts mxfp4":
        return ModelFiles("test", directory=write_checkpoint(TINY_GPT_OSS, directory / "gpt-oss", torch.device("cpu")))
    if scheme in ("experts", "latents"):
        family = "Qwen3Moe" if scheme == "experts" else "DeepseekV3"
        return ModelFiles("test", directory=save_pair(directory, form, family)[0])
    if scheme == "gguf":
        sizes = {**LARGE, "hidden_size": 256, "head_dim": 64} if Kind[form] in ONLY_READ else LARGE
        with pytest.MonkeyPatch.context() as patch:
            if Kind[form] in ONLY_READ:
                patch.setattr(gguf_writer, "quantize", lambda array, kind: random_blocks(kind.name, *array.shape))
            path = write_gguf(reference_model(**sizes, **HEADS), directory / "model.gguf", Kind[form])
        return ModelFiles("test", gguf=path)
    if scheme == "mixture":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        model = reference_model("Qwen3Moe", **LARGE, **HEADS, **experts)
        return ModelFiles("test", gguf=write_case(model, directory / "model.gguf", "qwen3moe", Kind.Q8_0))
    if scheme == "grouped":
        grouped_checkpoints.save_grouped(directory, form, **LARGE, **HEADS)
    elif scheme == "fp8":
        fp8_checkpoints.save_fp8(directory, form)
    else:
        save(reference_model(**LARGE, **HEADS), directory)
    return ModelFiles("test", directory=directory)


def held_bytes() -> int:
    """Return the bytes of all live tensors, each storage counted once."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.device.type == "cpu"]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


@pytest.mark.parametrize(
    ("name", "flag", "dtype"),
    [
        *((*case, torch.float32) for case in CASES),
        *((*case, torch.bfloat16) for case in CASES if case[0] in HALF),
    ],
)
@pytest.mark.usefixtures("new_tensors")
def test_weights_take_what_is_planned(name: str, flag: str | None, dtype: torch.dtype, tmp_path: Path) -> None:
    files = files_of(name, tmp_path)
    spec = gguf_blocks.quantized(files, read_spec(files), flag)
    before = held_bytes()
    blueprint = make_blueprint(spec, dtype, Shard())
    planned = footprint.weight_bytes(blueprint)
    decoder = load_model(files, spec, torch.device("cpu"), dtype, lambda *_: None)
    measured = held_bytes() - before
    assert decoder.spec is spec
    assert measured == pytest.approx(planned, rel=TOLERANCE), f"{measured / planned:.3f} of what is planned"


@pytest.mark.parametrize(("family", "changes"), [("Llama", {}), ("Gemma2", {"sliding_window": 32, "head_dim": 8})])
@pytest.mark.usefixtures("new_tensors")
def test_cache_and_adapter_slots_take_what_is_planned(family: str, changes: dict[str, int], tmp_path: Path) -> None:
    """Blocks of full attention and of windows to the byte, and slots of adapters but for a few counters."""
    files = ModelFiles("test", directory=save(reference_model(family, **changes), tmp_path))
    lora = {"enable_lora": True, "max_loras": 3, "max_cpu_loras": 3, "max_lora_rank": 8}
    config = EngineConfig(model=str(tmp_path), device="cpu", max_num_seqs=4, kv_cache_memory=1 << 20, **lora)
    sizing = size_engine(config, files)
    decoder = load_model(files, sizing.resolved.spec, torch.device("cpu"), torch.float32, lambda *_: None)
    setup = WorkerSetup(config, files, sizing.resolved, sizing.plan, Shard())
    before = held_bytes()
    cache = worker_setup._allocate(setup, decoder, sizing.plan)
    assert held_bytes() - before == sizing.plan.kv_bytes
    assert [group.window for group in cache.groups] == [None] + [32] * (family == "Gemma2")
    before = held_bytes()
    slots = worker_setup._make_slots(setup, decoder)
    assert slots is not None
    assert 2 * (held_bytes() - before) == pytest.approx(sizing.plan.need.adapters, abs=2048)  # with --max-cpu-loras
    half = size_engine(replace(config, dtype="bfloat16"), files)  # slots are, the files of adapters are not
    assert half.plan.need.adapters == pytest.approx(0.75 * sizing.plan.need.adapters, abs=2048)
