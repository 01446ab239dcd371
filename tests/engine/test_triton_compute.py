"""Who computes by Triton kernels, and that ranks which do so agree with PyTorch alone (interpreted, on the CPU)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import reference_model, save
from rank_logits import logits_of
from test_footprint import make_decoder

from octavo_engine.model.layers.compute import choose_compute
from octavo_engine.model.layers.triton_compute import TritonCompute
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import read_spec
from octavo_engine.model.weights import load_model

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}


def test_gpus_compute_by_triton_and_cpus_only_where_it_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_decoder(torch.float32, **SIZES).spec
    assert isinstance(choose_compute(spec, torch.bfloat16, torch.device("cuda")), TritonCompute)
    assert not isinstance(choose_compute(spec, torch.bfloat16, CPU), TritonCompute)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert isinstance(choose_compute(spec, torch.float32, CPU), TritonCompute)


def test_two_ranks_give_the_logits_of_one_by_pytorch(tmp_path: Path) -> None:
    """The first rank alone adds residual and biases, though a linear writes its sum into the residual."""
    changes = {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 1}
    checkpoint = save(reference_model(**changes), tmp_path / "biases")
    files = ModelFiles("test", directory=checkpoint)
    expected = logits_of(load_model(files, read_spec(files), CPU, torch.float32, lambda *_: None))
    script = [sys.executable, str(Path(__file__).with_name("rank_logits.py"))]
    processes = [
        subprocess.Popen(
            [*script, str(rank), "2", str(tmp_path / "meeting"), str(tmp_path), str(checkpoint)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )
        for rank in range(2)
    ]
    assert [process.wait(200) for process in processes] == [0, 0]
    torch.testing.assert_close(torch.load(tmp_path / "biases.pt"), expected, rtol=1e-4, atol=1e-4)
