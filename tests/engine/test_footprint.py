"""The bound on a step's memory holds, and is no wild guess either."""

from __future__ import annotations

import pytest
import torch
from peak_memory import peak_memory
from stepper import Sequence, Stepper

from octavo_engine.model import footprint
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.spec import ModelSpec, RopeSpec

WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}
SHAPES = {
    "wide feed-forward": WIDE,
    "many heads": {**WIDE, "intermediate_size": 64, "num_heads": 32, "num_kv_heads": 32},
    "narrow": {**WIDE, "intermediate_size": 64, "num_heads": 1, "num_kv_heads": 1},
    "large vocabulary": {**WIDE, "vocab_size": 20_000},
}


def make_decoder(dtype: torch.dtype, **changes: int) -> Decoder:
    from octavo_engine.attention.backend import KVGroupSpec

    sizes = {"vocab_size": 300, "num_layers": 2, **changes}
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        max_position=4096,
        rms_norm_eps=1e-5,
        rope=RopeSpec(10000.0),
        tie_word_embeddings=True,
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        hidden_act="silu",
        dtype=dtype,
        eos_token_ids=(),
        kv_groups=(KVGroupSpec("full", (0, 1), sizes["num_kv_heads"], sizes["head_dim"]),),
        **sizes,
    )
    decoder = Decoder(spec, dtype=dtype, device=torch.device("cpu"))
    for parameter in decoder.parameters():
        parameter.normal_(std=0.02)
    return decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("lens", "computed"), [((700, 200, 100), 0), ((300,) * 20, 299)], ids=["prefill", "decode"])
def test_step_bytes_bounds_a_step(shape, dtype, lens, computed):
    decoder = make_decoder(dtype, **shape)
    stepper = Stepper(decoder, num_blocks=640)
    sequences = [Sequence([7] * n) for n in lens]
    if computed:
        stepper.step([(sequence, computed) for sequence in sequences], sample=[0])
    work = [(sequence, len(sequence.tokens) - computed) for sequence in sequences]
    tokens = sum(count for _, count in work)
    sample = list(range(tokens - len(work), tokens))
    with peak_memory() as peak:
        stepper.step(work, sample=sample)
    (group,) = decoder.spec.kv_groups
    scratch = stepper.backend.scratch_bytes(group, decoder.spec.num_heads, tokens, len(lens), max(lens))
    bound = footprint.step_bytes(decoder.spec, dtype, tokens, len(lens), scratch)
    assert peak.bytes <= bound
    assert peak.bytes > bound / 8
