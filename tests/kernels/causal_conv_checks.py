"""Checks of the short causal convolution and its state."""

from __future__ import annotations

from functools import partial

import torch

from octavo_engine.kernels.recurrent.causal_conv import causal_conv, causal_conv_kernel, conv_state_kernel
from tests.kernels.check import Build, Check
from tests.kernels.poison import poisoned
from tests.kernels.sequences import steps

_WIDTH = 4


def _compare(
    device: torch.device,
    query_lens: tuple[int, ...],
    has_past: tuple[bool, ...],
    channels: int,
    *,
    bias: bool = False,
    silu: bool = True,
    dtype: torch.dtype = torch.float32,
    first_row: int = 0,
) -> None:
    """Against PyTorch's convolution of past and new inputs; states that must not be read are not numbers."""
    step = steps(device, query_lens, has_past, first_row)
    x = torch.randn(step.tokens, channels + 16, device=device).to(dtype)[:, :channels]
    weight = torch.randn(channels, _WIDTH, device=device).to(dtype)
    added = torch.randn(channels, device=device).to(dtype) if bias else None
    state = torch.full((len(query_lens) + 1, _WIDTH - 1, channels), torch.nan, device=device, dtype=dtype)
    output = torch.zeros(step.tokens, channels, dtype=torch.float64, device=device)
    kept = state.clone()
    for row, tokens, past in zip(step.state_rows.tolist(), step.slices(), has_past, strict=True):
        old = torch.randn(_WIDTH - 1, channels, device=device).to(dtype) if past else torch.zeros_like(kept[0])
        state[row] = old if past else torch.nan
        kept[row] = state[row]
        if tokens.start == tokens.stop:
            continue
        inputs = torch.cat((old, x[tokens]))
        kept[row] = inputs[-(_WIDTH - 1) :]
        convolved = torch.nn.functional.conv1d(
            inputs.double().T, weight.double()[:, None], None if added is None else added.double(), groups=channels
        )
        output[tokens] = (torch.nn.functional.silu(convolved) if silu else convolved).T
    sequences = (step.state_rows, step.cu_query_lens, step.context_lens)
    with poisoned():
        actual = causal_conv(x, weight, added, state, *sequences, max_query_len=max(query_lens), silu=silu)
    begin, end = step.slices()[0].start, step.slices()[-1].stop
    error = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual[begin:end].double(), output[begin:end], rtol=error, atol=error)
    assert torch.equal(state.nan_to_num(9.0), kept.nan_to_num(9.0)), "what is kept is kept to the bit"


_MIXED = (1, 40, 0, 2, 16, 3, 17, 1)
_PASTS = (True, False, True, True, True, False, True, False)
CHECKS = [
    Check("decode", partial(_compare, query_lens=(1, 1, 1, 0), has_past=(True, False, True, True), channels=300)),
    Check("mixed", partial(_compare, query_lens=_MIXED, has_past=_PASTS, channels=48, bias=True)),
    Check("no_silu", partial(_compare, query_lens=_MIXED, has_past=_PASTS, channels=48, bias=True, silu=False)),
    Check("slice", partial(_compare, query_lens=_MIXED, has_past=_PASTS, channels=48, first_row=37)),
    Check("bfloat16", partial(_compare, query_lens=(5, 1), has_past=(True, True), channels=64, dtype=torch.bfloat16)),
    Check(
        "qwen3_next", partial(_compare, query_lens=(700, *_MIXED), has_past=(True, *_PASTS), channels=8192), large=True
    ),
]

_SEQUENCES = dict.fromkeys(("cu_query_lens", "context_lens"), "*i32") | {"state_rows": "*i64"}
_TENSORS = dict.fromkeys(("x", "state"), "*bf16") | _SEQUENCES | {"x_stride": "i32"}
_SIZES = {"CHANNELS": 8192, "WIDTH": 4, "BLOCK": 128}
BUILDS = [
    Build(
        f"causal_conv_{name}",
        causal_conv_kernel,
        {"output": "*bf16", "weight": "*bf16", "num_seqs": "i32"} | _TENSORS,
        {"bias": None, "TILE_TOKENS": tokens, "SILU": True, **_SIZES},
        max_registers=registers,
        max_shared=shared,
        max_loop={"all": loop},
    )
    for name, tokens, registers, shared, loop in (("decode", 1, 40, 0, 13), ("prefill", 16, 112, 1024, 16))
] + [Build("conv_state", conv_state_kernel, _TENSORS, _SIZES, max_registers=32)]
