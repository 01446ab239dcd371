"""Checks of Gated DeltaNet, token by token and in chunks."""

from __future__ import annotations

import torch

from octavo_engine.kernels.recurrent.gated_delta_net import (
    RECURRENT_TOKENS,
    chunk_kernel,
    gated_delta_net,
    recurrent_kernel,
    scan_kernel,
)
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision, poisoned
from tests.kernels.sequences import Steps, steps

_SCALE = 0.3


def _recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, b: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """The definition in float64: q, k [T, Dk] and v [T, Dv] of one head; `state` [Dk, Dv] is changed in place."""
    outputs = []
    for token in range(len(q)):
        state *= log_decay[token].exp()
        delta = b[token] * (v[token] - state.T @ k[token])
        state += torch.outer(k[token], delta)
        outputs.append(_SCALE * state.T @ q[token])
    return torch.stack(outputs) if outputs else v


def _reference(
    step: Steps, inputs: dict[str, torch.Tensor], state: torch.Tensor, normalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and states after it."""
    q, k, v, g, b = (x.double() for x in inputs.values())
    if normalize:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    group = v.shape[1] // k.shape[1]
    output, after = torch.zeros_like(v), state.double()
    for row, tokens, past in zip(step.state_rows.tolist(), step.slices(), step.has_past, strict=True):
        if not past and tokens.stop > tokens.start:
            after[row] = 0.0
        for head in range(v.shape[1]):
            of = (tokens, head // group)
            output[tokens, head] = _recurrence(
                q[of], k[of], v[tokens, head], g[tokens, head], b[tokens, head], after[row, head]
            )
    return output, after


def _inputs(
    device: torch.device, dtype: torch.dtype, tokens: int, sizes: tuple[int, int, int, int]
) -> dict[str, torch.Tensor]:
    """Query, key and value are slices of one tensor. Decays from almost none to a hundredth a token."""
    key_heads, heads, key_dim, value_dim = sizes
    widths = (key_heads * key_dim, key_heads * key_dim, heads * value_dim)
    q, k, v = torch.randn(tokens, sum(widths), device=device).to(dtype).split(widths, dim=-1)
    return {
        "query": q.unflatten(-1, (key_heads, key_dim)),
        "key": k.unflatten(-1, (key_heads, key_dim)),
        "value": v.unflatten(-1, (heads, value_dim)),
        "log_decay": -(torch.rand(tokens, heads, device=device) ** 6) * 4.6,
        "strength": torch.rand(tokens, heads, device=device).to(dtype),
    }


def _compare(
    device: torch.device,
    dtype: torch.dtype,
    step: Steps,
    inputs: dict[str, torch.Tensor],
    *,
    normalize: bool = True,
) -> None:
    """States that must not be read are not numbers; those of no sequence stay as they are."""
    (heads, value_dim), key_dim = inputs["value"].shape[1:], inputs["key"].shape[2]
    state = torch.full((len(step.query_lens) + 1, heads, key_dim, value_dim), torch.nan, device=device)
    for row, past in zip(step.state_rows.tolist(), step.has_past, strict=True):
        if past:
            state[row] = torch.randn_like(state[row]) / key_dim**0.5
    expected, after = _reference(step, inputs, state, normalize)
    with poisoned():
        actual = gated_delta_net(
            **inputs,
            state=state,
            state_rows=step.state_rows,
            cu_query_lens=step.cu_query_lens,
            context_lens=step.context_lens,
            max_query_len=max(step.query_lens),
            scale=_SCALE,
            normalize=normalize,
        )
    error = 2e-5 if dtype == torch.float32 else 3e-2
    begin, end = step.slices()[0].start, step.slices()[-1].stop
    torch.testing.assert_close(actual[begin:end].double(), expected[begin:end], rtol=error, atol=error)
    torch.testing.assert_close(state.double(), after, rtol=error, atol=error, equal_nan=True)


def _check(
    name: str,
    query_lens: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    *,
    exact: bool = True,
    normalize: bool = True,
    large: bool = False,
    first_row: int = 0,
) -> Check:
    """`sizes`: key heads, heads, key dim, value dim. Every second sequence has a past."""

    def run(device: torch.device) -> None:
        dtype = torch.float32 if exact else half_precision(device)
        step = steps(device, query_lens, tuple(number % 2 == 0 for number in range(len(query_lens))), first_row)
        inputs = _inputs(device, dtype, step.tokens, sizes)
        if not normalize:
            inputs["key"] /= sizes[2] ** 0.5  # keys much longer than 1 would make the state grow without end
        _compare(device, dtype, step, inputs, normalize=normalize)

    return Check(name, run, large)


def _one_token_again_and_again(device: torch.device) -> None:
    """The hardest matrix to invert: all keys alike, full strength, no decay; a series of its powers would explode."""
    step = steps(device, (128,), (True,))
    inputs = _inputs(device, torch.float32, step.tokens, (1, 1, 32, 32))
    inputs["key"] = inputs["key"][:1].expand(step.tokens, -1, -1)
    inputs["strength"] = torch.ones_like(inputs["strength"])
    inputs["log_decay"] = torch.zeros_like(inputs["log_decay"])
    _compare(device, torch.float32, step, inputs)


def _no_matter_who_else(device: torch.device) -> None:
    """A decode token's result is the same to the bit beside a prompt, which is computed in chunks."""
    step = steps(device, (1, 70), (True, False))
    inputs = _inputs(device, torch.float32, step.tokens, (1, 2, 16, 32))
    outputs, states = [], []
    first = torch.randn(3, 2, 16, 32, device=device)
    for sequences in (2, 1):
        tokens = int(step.cu_query_lens[sequences])
        states.append(first.clone())
        outputs.append(
            gated_delta_net(
                **{name: x[:tokens] for name, x in inputs.items()},
                state=states[-1],
                state_rows=step.state_rows[:sequences],
                cu_query_lens=step.cu_query_lens[: sequences + 1],
                context_lens=step.context_lens[:sequences],
                max_query_len=max(step.query_lens[:sequences]),
                scale=_SCALE,
                normalize=True,
            )
        )
    row = int(step.state_rows[0])
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(states[0][row], states[1][row])


_NEXT = (16, 32, 128, 128)
_RAGGED = (RECURRENT_TOKENS, 64, 0, 1, RECURRENT_TOKENS + 1, 65, 130)
CHECKS = [
    _check("decode", (1, 1, 0, 1), (1, 2, 32, 64)),
    _check("ragged", _RAGGED, (1, 2, 16, 32)),
    _check("heads_of_their_own_not_normalized", (3, 1), (2, 2, 16, 32), normalize=False),
    _check("chunks_not_normalized", (70,), (2, 2, 16, 32), normalize=False),
    _check("half_precision", (100, 2), (1, 1, 64, 64), exact=False),
    _check("slice", (70, 1, 65), (1, 2, 16, 32), first_row=130),
    Check("one_token_again_and_again", _one_token_again_and_again),
    Check("no_matter_who_else", _no_matter_who_else),
    _check("qwen3_next_decode", (1,) * 33, _NEXT, exact=False, large=True),
    _check("qwen3_next_mixed", (700, 1, 64, 3), _NEXT, exact=False, large=True),
    _check("qwen3_next_float32", (200, 1), _NEXT, large=True),
]

_INPUTS = dict.fromkeys(("query", "key", "strength"), "*bf16") | {"log_decay": "*fp32", "cu_query_lens": "*i32"}
_INPUTS |= {"query_stride": "i32", "key_stride": "i32"}
_STATE = {"output": "*bf16", "value": "*bf16", "state": "*fp32", "value_stride": "i32"}
_STATE |= {"state_rows": "*i64", "context_lens": "*i32"}
_MATRICES = dict.fromkeys(("inverses", "scores"), "*bf16") | {"factors": "*fp32"}
_SIZES = {"HEADS": 32, "GROUP": 2, "KEY_DIM": 128, "MOST_TOKENS": RECURRENT_TOKENS}
_COLUMNS = {"VALUE_DIM": 128, "COLUMNS": 32}
_CHUNKS = {"CHUNK": 64, "PRECISION": "tf32"}
BUILDS = [
    Build(
        "gated_delta_net_recurrent",
        recurrent_kernel,
        _INPUTS | _STATE | {"scale": "fp32"},
        _SIZES | _COLUMNS | {"NORMALIZE": True},
        max_registers=104,
        max_shared=1024,
        sass=("LDG.E.128", "STG.E.128"),
        max_loop={"all": 368},
    ),
    Build(
        "gated_delta_net_chunk",
        chunk_kernel,
        _INPUTS | _MATRICES | {"num_seqs": "i32", "scale": "fp32"},
        _SIZES | _CHUNKS | {"NORMALIZE": True},
        max_registers=200,
        max_shared=33 * 1024,
        sass=("HGMMA.64x64x16.F32.BF16", "HGMMA.64x64x8.F32.TF32"),
        max_loop={"all": 392},
    ),
    Build(
        "gated_delta_net_scan",
        scan_kernel,
        _INPUTS | _STATE | _MATRICES,
        _SIZES | _COLUMNS | _CHUNKS,
        stages=2,
        max_registers=216,
        max_shared=113 * 1024,
        sass=("HGMMA.64x32x16.F32.BF16", "LDGSTS.E.BYPASS.128"),
        max_loop={"all": 720},
    ),
]
