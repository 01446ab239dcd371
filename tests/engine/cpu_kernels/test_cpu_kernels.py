"""The C kernels against the same arithmetic in PyTorch's float64, and against plain attention.

They are compiled for each instruction set that this machine has.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from c_kernels import needs_kernels
from paging import BATCHES, make_batch, plain_attention, run

from octavo_engine.attention.backend import AttentionTask, KVGroupSpec
from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.attention.rope import Rope, rotate
from octavo_engine.attention.select import select_backend
from octavo_engine.core.step import Chunk, StepPlan
from octavo_engine.kernels.cpu import build
from octavo_engine.kernels.cpu.adapters import CPUAdapters
from octavo_engine.kernels.cpu.features import cpu_flags
from octavo_engine.kernels.cpu.library import CPUKernels, cpu_kernels
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.model.layers.operations.pointwise import CPUPointwise, TorchPointwise
from octavo_engine.model.layers.operations.products import kernel_gated_product, kernel_logits, kernel_product
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.sampling.prompt_outputs import PromptRead, with_read_tokens
from octavo_engine.runner.state_table import StateTable
from tests.kernels import gather_checks
from tests.kernels.check import Check

pytestmark = pytest.mark.usefixtures("several_threads")

DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded(ours: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal but for one rounding to bfloat16 and float32's in the sums."""
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=1e-4)


def test_the_best_instruction_set_of_a_cpu_is_chosen(monkeypatch) -> None:
    """What /proc/cpuinfo says of some kinds of CPU."""
    avx2 = {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"}
    avx512 = avx2 | {"avx512f", "avx512vl", "avx512dq", "avx512bw"}
    for flags, level in (
        (avx512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"}, "avx512_bf16_amx"),
        (avx512 | {"avx512_vnni", "avx512_bf16", "amx_tile"}, "avx512_bf16"),
        (avx512 | {"avx512_vnni", "avx_vnni"}, "avx512_vnni"),
        (avx512, "avx512"),
        (avx2 | {"avx_vnni"}, "avx_vnni"),
        (avx2, "avx2"),
    ):
        monkeypatch.setattr(build, "cpu_flags", lambda flags=flags: frozenset(flags))
        assert build._level() == level
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset(avx2 - {"avx2"}))
    with pytest.raises(build.BuildError, match="AVX2"):
        build._level()


@pytest.mark.parametrize(
    ("features", "level"),
    [
        ("fp asimd evtstrm crc32 cpuid", "neon"),
        (
            "fp asimd evtstrm aes sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs",
            "neon_dotprod",
        ),
        ("fp asimd aes crc32 atomics fphp asimdrdm dcpop asimddp sve svei8mm svebf16 i8mm bf16 dgh rng", "neon_bf16"),
    ],
)
def test_the_best_instruction_set_of_an_arm64_cpu_is_chosen(features: str, level: str, monkeypatch) -> None:
    """A Cortex-A72, a Neoverse N1 and, abridged, a Neoverse V1."""
    text = f"processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: text)
    monkeypatch.setattr(build, "cpu_flags", cpu_flags.__wrapped__)
    monkeypatch.setattr(build, "LEVELS", build.ARCHITECTURES["aarch64"])
    assert build._level() == level


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 70])
@pytest.mark.parametrize(("inner", "rows"), [(64, 24), (576, 100), (34, 7), (96, 12), (130, 50)])
def test_linear(kernels: CPUKernels, tokens: int, inner: int, rows: int) -> None:
    x, weight = random(tokens, inner), random(rows, inner, seed=1)
    bias, addend = random(rows, seed=2), random(tokens, rows, seed=3)
    product = x.double() @ weight.double().T
    assert_rounded(kernels.linear(x, weight), product)
    assert_rounded(kernels.linear(x, weight, bias, addend), product + bias.double() + addend.double())


@pytest.mark.parametrize(("tokens", "inner"), [(300, 3232), (40, 4128)])
def test_linear_of_many_inputs(kernels: CPUKernels, tokens: int, inner: int) -> None:
    """With AMX not all of them are multiplied at once: 136 rows are four blocks, then one of 8."""
    x, weight, addend = random(tokens, inner), random(136, inner, seed=1) / 64, random(tokens, 136, seed=2)
    product = x.double() @ weight.double().T
    assert_rounded(kernels.linear(x, weight, addend=addend), product + addend.double())
    gate, up = product.chunk(2, dim=-1)
    assert_rounded(kernels.linear(x, weight, silu=True), F.silu(gate) * up)


@pytest.mark.parametrize("tokens", [0, 1, 8, 9, 33, 300])
def test_logits_are_not_rounded(kernels: CPUKernels, tokens: int) -> None:
    x, weight = random(tokens, 576), random(100, 576, seed=1)
    logits = kernels.logits(x, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 4, 7, 16, 40])
@pytest.mark.parametrize(("inner", "rows"), [(64, 48), (130, 26)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gated_linear(kernels: CPUKernels, tokens: int, inner: int, rows: int, with_bias: bool) -> None:
    x, weight = random(tokens, inner), random(rows, inner, seed=1) * 0.3
    bias = random(rows, seed=2) if with_bias else None
    gate, up = F.linear(x.double(), weight.double(), None if bias is None else bias.double()).chunk(2, dim=-1)
    assert_rounded(kernels.linear(x, weight, bias, silu=True), F.silu(gate) * up)


def test_a_token_does_not_depend_on_its_company(kernels: CPUKernels) -> None:
    x, weight = random(40, 576), random(100, 576, seed=1)
    for few in (x[:12], x[:16], x[:33]):
        torch.testing.assert_close(kernels.linear(few, weight), kernels.linear(x, weight)[: len(few)])


def test_extreme_gates(kernels: CPUKernels) -> None:
    """Gates whose exponential exceeds float32, and NaN."""
    gate = torch.tensor([-1000.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1000.0, torch.nan] * 2)
    both = torch.cat((gate, torch.ones(16)))[None]
    torch.testing.assert_close(kernels.silu_mul(both)[0], F.silu(gate), rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 300])
def test_pointwise(kernels: CPUKernels, tokens: int, dtype: torch.dtype) -> None:
    ours, theirs = CPUPointwise(kernels), TorchPointwise()
    x, weight = random(tokens, 96, dtype=dtype), random(96, dtype=dtype, seed=1)
    norm = NormWeights(weight, 1e-5)
    torch.testing.assert_close(ours.norm(x, norm, None)[0], theirs.norm(x, norm, None)[0])
    wide = random(tokens, 192, dtype=dtype, seed=2)
    gate, up = wide.float().chunk(2, dim=-1)
    torch.testing.assert_close(kernels.silu_mul(wide), (F.silu(gate) * up).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 64), (7, 32), (200, 96)])
def test_rope_of_some_heads(kernels: CPUKernels, tokens: int, head_dim: int, dtype: torch.dtype) -> None:
    heads = random(tokens, 5, head_dim, dtype=dtype)
    angles = random(tokens, 1, head_dim // 2, dtype=torch.float32, seed=1)
    expected = torch.cat((rotate(heads[:, :3], Rope(angles.cos(), angles.sin())), heads[:, 3:]), dim=1)
    kernels.rotate(heads[:, :3], angles.cos(), angles.sin())
    torch.testing.assert_close(heads, expected)


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 32), (9, 3, 64), (12, 2, 128), (5, 1, 96)])
@pytest.mark.parametrize("window", [None, 1, 10, 16, 40])
def test_attention(kernels: CPUKernels, lens, heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
    batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
    output = run(CPUAttention(kernels), batch)
    torch.testing.assert_close(output.double(), plain_attention(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts_in_parts(kernels: CPUKernels, block_size: int, dtype: torch.dtype) -> None:
    lens = [(1, 1025), (1, 2100), (40, 300), (1, 64), (1, 65), (513, 600)]
    batch = make_batch(lens, heads=4, kv_heads=2, head_dim=64, block_size=block_size, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    output = run(CPUAttention(kernels), batch)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), plain_attention(batch), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 32), (9, 3, 64), (12, 2, 128), (5, 1, 96)])
@pytest.mark.parametrize("window", [None, 40])
def test_chunks_in_bfloat16(kernels: CPUKernels, heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
    """Keys for one to four copies of 128, and rows that fill no tile."""
    lens = [(9, 20), (33, 33), (150, 400), (1, 7)]
    batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window, dtype=torch.bfloat16)
    output = run(CPUAttention(kernels), batch)
    torch.testing.assert_close(output.double(), plain_attention(batch), rtol=2e-2, atol=2e-2)


@needs_kernels
@pytest.mark.parametrize("check", gather_checks.CHECKS, ids=lambda check: check.name)
def test_gathered_inputs_are_those_of_pytorch(kernels: CPUKernels, check: Check, monkeypatch) -> None:
    """The checks of the Triton kernel that does the same on a GPU."""
    monkeypatch.setattr("octavo_engine.runner.inputs.cpu_kernels", lambda: kernels)
    check.run(torch.device("cpu"))


@pytest.mark.parametrize(
    ("chunks", "all_sampled"),
    [
        ((), True),
        ((Chunk(1, 4, 1, samples=True),), True),
        ((Chunk(1, 4, 1, samples=False),), False),
        ((Chunk(1, 4, 2, samples=True),), False),
    ],
)
def test_a_step_says_whether_all_its_tokens_are_sampled(chunks: tuple[Chunk, ...], all_sampled: bool) -> None:
    """Then hidden states are not gathered. Where a prompt's tokens are read as well, their order may be another."""
    plan = StepPlan(0, decode_rows=[0], decode_starts=[3], chunks=chunks)
    inputs = gather_inputs(plan, StateTable(2, 64, 16, 1, torch.device("cpu"))).inputs
    assert inputs.all_sampled is all_sampled
    assert (inputs.token_indices.tolist() == list(range(plan.num_tokens))) is all_sampled
    assert not with_read_tokens(inputs, [PromptRead(1, 4, first_token=1, count=1, result=None)]).all_sampled


@pytest.mark.parametrize(
    ("counts", "contexts", "window", "expected"),
    [
        ([1], [1], None, [(0, 0, 0, 1)]),
        ([1], [128], None, [(0, 0, 0, 128)]),
        ([1], [129], None, [(0, 0, 0, 128), (0, 0, 128, 129)]),
        ([1], [129], 100, [(0, 0, 29, 129)]),
        ([1], [2049], None, [(0, 0, begin, min(begin + 144, 2049)) for begin in range(0, 2049, 144)]),
        ([2], [400], None, [(0, 0, 0, 399), (1, 0, 0, 400)]),
        ([8, 1], [500, 3], None, [(8, 1, 0, 3)]),
        ([1, 1, 1], [2, 0, 4], None, [(0, 0, 0, 2), (2, 2, 0, 4)]),
    ],
)
def test_parts_of_contexts(kernels: CPUKernels, counts, contexts, window: int | None, expected) -> None:
    """Queries of chunks have no parts, nor has padding; one of several queries has one part."""
    ends = torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
    parts, first_part = kernels.attention_parts(ends, torch.tensor(contexts, dtype=torch.int32), sum(counts), window)
    assert list(map(tuple, parts.tolist())) == expected
    queries = [part[0] for part in expected]
    assert first_part.tolist() == [bisect_left(queries, query) for query in range(sum(counts) + 1)]


def test_auto_takes_the_kernels_for_what_they_compute() -> None:
    cpu = torch.device("cpu")

    def chosen(head_dim: int, block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> str:
        task = AttentionTask((KVGroupSpec("full", (0,), 2, head_dim),), block_size, dtype, kv_dtype or dtype, 4)
        return select_backend("auto", cpu, task).name

    assert chosen(64, 16, torch.bfloat16) == "cpu"
    assert chosen(24, 16, torch.bfloat16) == "torch"
    assert chosen(64, 8, torch.bfloat16) == "torch"
    assert chosen(64, 16, torch.float16) == "torch"
    assert chosen(64, 16, torch.bfloat16, torch.float8_e4m3fn) == "torch"
    task = AttentionTask((KVGroupSpec("full", (0,), 2, 64),), 16, torch.float32, torch.float32, 4)
    assert select_backend("torch", cpu, task).name == "torch"


@needs_kernels
def test_without_a_compiler_pytorch_computes(monkeypatch, tmp_path, caplog) -> None:
    monkeypatch.setattr(build, "_COMPILER", "no-such-compiler")
    monkeypatch.setattr(build, "PACKAGED", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cpu_kernels.__wrapped__() is None
    assert "no-such-compiler cannot be run" in caplog.text


@needs_kernels
def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(build, "_OPTIONS", ("-no-such-option",))
    with pytest.raises(build.BuildError, match="no-such-option"):
        build.compile_to(tmp_path, "avx512")


def test_a_compiler_that_takes_too_long_is_reported_without_its_command(monkeypatch, tmp_path) -> None:
    slow = tmp_path / "slow-compiler"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(build, "_COMPILER", str(slow))
    monkeypatch.setattr(build, "_TIMEOUT", 0.05)
    with pytest.raises(build.BuildError, match=r"slow-compiler took longer than 0\.05 s$"):
        build.compile_to(tmp_path, "avx512")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache that a user's checkouts share, empty; the compiler is one that only writes a word."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho compiled > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "_COMPILER", str(compiler))
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "checkout")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "octavo" / "kernels"


def test_checkouts_share_what_one_has_compiled(
    shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make setup` copies it into the checkout, which is all that a pod of it sees; so the first start finds it too."""
    monkeypatch.setattr(build, "_level", lambda: "avx2")
    kept = build.built_library()
    assert (kept.parent, kept.read_text()) == (shared, "compiled\n")
    assert shared.stat().st_mode & 0o777 == 0o700 and kept.stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(build, "_COMPILER", "no-such-compiler")
    for checkout in ("second", "third"):
        monkeypatch.setattr(build, "PACKAGED", tmp_path / checkout)
        monkeypatch.setattr("sys.argv", ["build", "--native"])
        build.main()
        assert capsys.readouterr().out == f"{tmp_path / checkout / kept.name}\n"
        assert build.built_library() == tmp_path / checkout / kept.name
        assert build.built_library().read_text() == "compiled\n"


@pytest.mark.parametrize("planted", ["file", "folder"])
@pytest.mark.parametrize("fault", ["another's", "for all to write"])
def test_what_others_could_have_written_is_not_loaded(
    shared: Path, planted: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    if fault == "another's" and os.geteuid():
        pytest.skip("only root can give a file away")
    shared.mkdir(parents=True, mode=0o700)
    bad = shared / build._file_name("avx2")
    bad.write_text("evil\n")
    at = bad if planted == "file" else shared
    os.chown(at, 12345, -1) if fault == "another's" else at.chmod(0o777)
    used = build.library_for("avx2")
    assert used.read_text() == "compiled\n"
    if planted == "folder":
        assert used.parent != shared and ("user 12345" if fault == "another's" else "others may write") in caplog.text
        shutil.rmtree(used.parent)
    else:
        assert used == bad and not build._untrusted(used), "made anew in its place"


@needs_kernels
def test_the_compiled_file_is_kept(monkeypatch, tmp_path, caplog) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    monkeypatch.setattr(build, "_sources", lambda _: [build.HERE / "masks.c"])  # compiled in a hundredth of the time
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build.built_library()
    monkeypatch.setattr(build, "_COMPILER", "no-such-compiler")
    assert build.built_library() == first
    assert caplog.text.count("compiling the kernels for this CPU") == 1
    assert ctypes.CDLL(str(first)).apply_masks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("columns", "parts", "times"), [(64, (48,), 1), (130, (32, 7, 40), 1), (33, (5, 16), 1), (33, (5, 16), 40)]
)
def test_adapters_of_several_ranks_in_one_batch(
    kernels: CPUKernels, dtype: torch.dtype, columns: int, parts: tuple[int, ...], times: int
) -> None:
    """Slots with other ranks, parts that an adapter leaves alone, an empty slot, and tokens without an adapter.

    The kernels do not sort 280 tokens by their slots as they do 7.
    """
    rank, ranks = 19, [[19, 4, 0], [1, 9, 11], [0, 0, 0]]
    a, b = random(3, len(parts) * rank, columns, dtype=dtype), random(3, rank, sum(parts), dtype=dtype, seed=1)
    adapters = CPUAdapters(kernels, a, b, parts)
    adapters.ranks.copy_(torch.tensor(ranks)[:, : len(parts)])
    slots = torch.tensor([1, -1, 0, 0, 2, 1, 0] * times, dtype=torch.int32)
    x, y = random(len(slots), columns, dtype=dtype, seed=2), random(len(slots), sum(parts), dtype=dtype, seed=3)
    exact = y.double()
    for token, slot in enumerate(slots.tolist()):
        for part, rows in enumerate(exact[token].split(parts) if slot >= 0 else ()):
            start, own = sum(parts[:part]), ranks[slot][part]
            hidden = a[slot, part * rank : part * rank + own].double() @ x[token].double()
            rows.add_(hidden @ b[slot, :own, start : start + parts[part]].double())
    adapters.add_to(y, x, slots)
    with pytest.raises(ValueError, match=f"6 inputs and 6 results for the slots of {7 * times} tokens"):
        adapters.add_to(y[:6], x[:6], slots)
    torch.testing.assert_close(y.double(), exact, rtol=2**-8 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)


def test_adapters_of_more_ranks_than_the_kernel_has_room_for_are_refused(kernels: CPUKernels) -> None:
    parts = (1,) * 65
    with pytest.raises(ValueError, match="65 projections of rank 512: the kernel has room for 32768 in all"):
        CPUAdapters(kernels, torch.empty(1, 65 * 512, 1), torch.empty(1, 512, 65), parts)


@needs_kernels
def test_products_take_a_part_of_a_larger_tensor() -> None:
    """The kernels need contiguous rows, and Mamba's time steps are such a part."""
    kernels = cpu_kernels()
    assert kernels is not None
    x, weight = torch.randn(5, 18).bfloat16()[:, :6], torch.randn(32, 6).bfloat16()
    found = kernel_product(kernels)(x, weight, None, None), kernel_logits(kernels)(x, weight, None)
    for product in found:
        torch.testing.assert_close(product.float(), x.float() @ weight.float().t(), rtol=0.02, atol=0.02)
    gated = kernel_gated_product(kernels, None)(x, weight, None, "silu")
    gate, up = (x.float() @ weight.float().t()).chunk(2, dim=-1)
    assert gated is not None
    torch.testing.assert_close(gated.float(), F.silu(gate) * up, rtol=0.02, atol=0.02)
