"""The Triton kernels without a GPU: interpreted they equal the reference, and they compile for a real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_engine.kernels.paged_attention import paged_attention_kernel, tile_shape


def test_interpreted_kernels_equal_the_reference():
    """All of interpreted_kernels.py, in a process whose Triton interprets."""
    path = Path(__file__).with_name("interpreted_kernels.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=250", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=path.parents[2])
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None and int(passed[1]) >= 80, result.stdout
    assert "skipped" not in result.stdout


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch, tmp_path):
    """Compile in earnest, not from an earlier run's cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compile_for_hopper(kernel, pointers: dict[str, str], constants: dict[str, object], warps: int):
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})


@pytest.mark.parametrize("max_query_len", [1, 512], ids=["decode", "prefill"])
@pytest.mark.parametrize(("group", "head_dim", "window"), [(4, 128, 0), (3, 64, 0), (8, 80, 1024)])
def test_attention_compiles_for_hopper(max_query_len, group, head_dim, window):
    rows, tile_tokens, warps = tile_shape(group, head_dim, max_query_len, torch.bfloat16)
    pointers = dict.fromkeys(("output", "query", "key_cache", "value_cache"), "*bf16")
    pointers |= dict.fromkeys(("block_table", "cu_query_lens", "context_lens"), "*i32") | {"scale": "fp32"}
    constants = {
        "KV_HEADS": 8,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_DIM_PADDED": triton.next_power_of_2(head_dim),
        "BLOCK_SIZE": 16,
        "WINDOW": window,
        "ROWS": rows,
        "TILE_TOKENS": tile_tokens,
        "PRECISION": "tf32",
    }
    compiled = compile_for_hopper(paged_attention_kernel, pointers, constants, warps)
    assert compiled.asm["cubin"]
    assert "mma" in compiled.asm["ptx"], "the products run on tensor cores"
    assert compiled.metadata.shared <= 227 * 1024, "shared memory of one Hopper block"
