"""Mixture of experts: our grouped products, and PyTorch's."""

from __future__ import annotations

import torch

from octavo_engine.kernels.moe import mixture_of_experts, moe_down_kernel, moe_gate_up_kernel, moe_sum_kernel, tiles_for
from octavo_engine.kernels.moe_choice import MixtureOfExperts, faster_mixture_of_experts, torch_mixture_of_experts
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision, poisoned


def _reference(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Expert by expert, in float64."""
    output = torch.zeros_like(x, dtype=torch.float64)
    for expert in range(len(down)):
        tokens, places = torch.nonzero(experts == expert, as_tuple=True)
        gate, up = (x[tokens].double() @ gate_up[expert].double().T).chunk(2, dim=-1)
        added = (torch.nn.functional.silu(gate) * up) @ down[expert].double().T
        output.index_add_(0, tokens, weights[tokens, places].double()[:, None] * added)
    return output


def _routed(
    device: torch.device, dtype: torch.dtype, tokens: int, hidden: int, intermediate: int, num_experts: int, top_k: int
) -> tuple[torch.Tensor, ...]:
    """Random weights and a random router's choice, distinct for a token, where expert 1 is never chosen."""
    x = torch.randn(tokens, hidden + 16, device=device).to(dtype)[:, :hidden]
    gate_up = (torch.randn(num_experts, 2 * intermediate, hidden, device=device) / hidden**0.5).to(dtype)
    down = (torch.randn(num_experts, hidden, intermediate, device=device) / intermediate**0.5).to(dtype)
    chances = torch.rand(tokens, num_experts, device=device)
    chances[:, 1] = -1
    experts = chances.topk(top_k).indices
    return x, gate_up, down, experts, torch.rand(tokens, top_k, device=device)


def _compare(
    compute: MixtureOfExperts, device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int, int, int]
) -> None:
    """The expert that nobody chose is not a number; some choices are of no expert of this rank."""
    x, gate_up, down, experts, weights = _routed(device, dtype, *shape)
    gate_up[1], down[1] = torch.nan, torch.nan
    experts[-1], experts[0, 0] = -1, down.shape[0]
    expected = _reference(x, gate_up, down, experts, weights)
    with poisoned():
        actual = compute(x, gate_up, down, experts, weights)
    assert actual.dtype == dtype
    error = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual.double(), expected, rtol=error, atol=error)


def _check(name: str, shape: tuple[int, int, int, int, int], *, exact: bool = True, large: bool = False) -> Check:
    """`shape`: tokens, hidden, intermediate, experts, k."""

    def run(device: torch.device) -> None:
        _compare(mixture_of_experts, device, torch.float32 if exact else half_precision(device), shape)

    return Check(name, run, large)


def _torch_equals_it(device: torch.device) -> None:
    """The other implementation, which may be chosen instead; on a GPU it knows bfloat16 alone."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    _compare(torch_mixture_of_experts, device, dtype, (20, 64, 48, 5, 3))


def _the_faster_is_one_of_them(device: torch.device) -> None:
    """A choice is made, on a GPU by what was measured."""
    _, gate_up, down, _, _ = _routed(device, half_precision(device), 8, 128, 64, 4, 2)
    chosen, seconds = faster_mixture_of_experts(gate_up, down, top_k=2, tokens=8)
    if device.type == "cuda":
        assert seconds[chosen.__name__] == min(seconds.values()) > 0
        assert len(seconds) == 2
    else:
        assert chosen is torch_mixture_of_experts


def _the_same_again(device: torch.device) -> None:
    """Deterministic, and independent of rows that the router sent nowhere."""
    x, gate_up, down, experts, weights = _routed(device, half_precision(device), 9, 64, 32, 4, 2)
    first = mixture_of_experts(x, gate_up, down, experts, weights)
    padded = [torch.cat((part, part[:3])) for part in (x, experts, weights)]
    padded[1][9:] = -1
    second = mixture_of_experts(padded[0], gate_up, down, padded[1], padded[2])
    assert torch.equal(first, second[:9])
    assert not second[9:].any()


CHECKS = [
    _check("decode", (5, 96, 80, 8, 3)),
    _check("one_token_int32", (1, 64, 64, 4, 1)),
    _check("more_rows_than_a_tile", (40, 64, 48, 3, 2)),
    _check("prefill", (150, 64, 32, 3, 2)),
    _check("half_precision", (20, 128, 64, 4, 2), exact=False),
    _check("qwen3_30b_decode", (64, 2048, 768, 128, 8), exact=False, large=True),
    _check("qwen3_30b_prefill", (2048, 2048, 768, 128, 8), exact=False, large=True),
    Check("torch_equals_it", _torch_equals_it),
    Check("the_faster_is_one_of_them", _the_faster_is_one_of_them),
    Check("the_same_again", _the_same_again),
]

_TILES = {"order": "*i32", "tiles": "*i32", "num_tiles": "*i32"}
_GATE_UP = {"inner": "*bf16", "x": "*bf16", "gate_up": "*bf16", "x_stride": "i32"} | _TILES
_DOWN = {"routed": "*bf16", "inner": "*bf16", "down": "*bf16", "weights": "*fp32"} | _TILES
_QWEN3_30B = {"HIDDEN": 2048, "INTERMEDIATE": 768, "BLOCK_INNER": 64, "PRECISION": "tf32"}


def _builds(
    name: str, tokens: int, gate_up: tuple[int, int], down: tuple[int, int], sass: tuple[str, ...], **loops: int
) -> list[Build]:
    """Both products for `tokens` tokens; of each at most how many registers and how much shared memory.

    `loops`: of each at most how many instructions in a turn, unless the loop is unrolled whole.
    """
    cut = tiles_for(tokens * 8, 128)
    sizes = {"TILE_ROWS": cut.rows, **_QWEN3_30B}
    return [
        Build(
            f"moe_gate_up_{name}",
            moe_gate_up_kernel,
            _GATE_UP,
            {"TOP_K": 8, "BLOCK_OUT": cut.gate_up_columns, **sizes},
            cut.warps,
            cut.stages,
            *gate_up,
            sass,
            {"all": loops["gate_up_loop"]},
        ),
        Build(
            f"moe_down_{name}",
            moe_down_kernel,
            _DOWN,
            {"BLOCK_OUT": cut.down_columns, **sizes},
            cut.warps,
            cut.stages,
            *down,
            sass,
            {"all": loops["down_loop"]} if "down_loop" in loops else {},
        ),
    ]


BUILDS = [
    *_builds("decode", 64, (72, 56 * 1024), (64, 32 * 1024), ("HMMA", "LDGSTS.E.BYPASS.128"), gate_up_loop=104),
    *_builds(
        "mixed",
        1024,
        (136, 72 * 1024),
        (136, 72 * 1024),
        ("HGMMA", "LDGSTS.E.BYPASS.128"),
        gate_up_loop=152,
        down_loop=136,
    ),
    *_builds(
        "prefill",
        8192,
        (184, 144 * 1024),
        (232, 144 * 1024),
        ("HGMMA", "LDGSTS.E.BYPASS.128"),
        gate_up_loop=154,
        down_loop=152,
    ),
    Build(
        "moe_sum",
        moe_sum_kernel,
        {"output": "*bf16", "routed": "*bf16", "experts": "*i64"},
        {"NUM_EXPERTS": 128, "TOP_K": 8, "HIDDEN": 2048, "BLOCK": 1024},
        max_registers=48,
        max_shared=0,
        sass=("LDG.E.128",),
    ),
]
