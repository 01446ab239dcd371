"""LoRA adapters beside the blocks of a GGUF file: what they add to the numbers for which the blocks stand."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf_writer
import numpy as np
import pytest
import torch
from adapters import RandomAdapter
from c_kernels import needs_kernels
from checkpoints import reference_model
from gguf.constants import GGMLQuantizationType as Kind
from loaded import linears
from stepper import Sequence, Stepper
from test_gguf_blocks import CPU, load
from torch import Tensor

from octavo_engine.model.lora.adapter_files import AdapterLimits, read_adapter
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import LoraSlots, lora_targets

pytestmark = pytest.mark.usefixtures("several_threads")

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
TOKENS = [[(29 * row + at * at) % 131 for at in range(14)] for row in range(3)]


def blocks(array: np.ndarray, kind: Kind) -> np.ndarray:
    """The array in blocks, or random blocks of numbers below 0.5 where the library has no quantization."""
    if kind is not Kind.Q4_K:
        return np.asarray(gguf.quants.quantize(array, kind))
    raw = gguf_writer.random_blocks("Q4_K", *array.shape).reshape(len(array), -1, 144)
    raw[..., [1, 3]] = 0x0C
    return raw.reshape(len(array), -1)


@needs_kernels
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_K, Kind.Q8_0])
def test_adapters_beside_blocks_add_the_same_as_beside_their_numbers(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with the first adapter, one with the second and one without; then a token of each."""
    monkeypatch.setattr(gguf_writer, "quantize", blocks)
    model = reference_model(**SIZES)
    path = gguf_writer.write_gguf(model, tmp_path / "model.gguf", kind)
    adapters = [RandomAdapter(rank, seed=rank, std=0.2).save(model, tmp_path / f"rank{rank}") for rank in (3, 16)]

    def logits(quantization: str | None, slots: list[int]) -> Tensor:
        decoder = load(path, quantization)
        assert {linear.plain for linear in linears(decoder)} == {quantization is None}
        lora = LoraSlots(decoder, lora_targets(decoder, CPU, gguf=True), 2, 16)
        for slot, adapter in enumerate(adapters):
            for write in read_adapter(adapter, AdapterLimits(module_names(decoder, lora.choice), 16, False)).writes(
                slot
            ):
                lora.write(write)
        stepper, found = Stepper(decoder), []
        sequences = [Sequence(tokens) for tokens in TOKENS]
        for count in (13, 1):
            lora.use([slot for slot in slots for _ in range(count)])
            found += stepper.step([(sequence, count) for sequence in sequences])
        return torch.cat(found)

    exact, kept = logits(None, [0, 1, -1]), logits("gguf", [0, 1, -1])
    torch.testing.assert_close(kept, exact, rtol=1e-4, atol=1e-3)
    assert (kept - logits("gguf", [-1, -1, -1])).abs().amax(-1)[[0, 13, 39, 40]].min() > 0.1
