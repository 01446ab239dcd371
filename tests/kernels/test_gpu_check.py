"""`make gpu-check` without a GPU: it distinguishes checks that pass, fail, crash, hang or are not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.shapes import TINY_LLAMA
from tests.kernels import adapted_model_checks, whole_model_checks
from tests.kernels.check import NotCheckedError, modules
from tests.kernels.gpu_check import Job, jobs_of, parse, run, table

ROOT = Path(__file__).parents[2]
ODD = """
import os, time
from tests.kernels.check import Check, NotCheckedError

def crash(device):
    os._exit(3)

def wrong(device):
    assert 1 == 2, "they differ"

def absent(device):
    raise NotCheckedError("nothing to check it with")

CHECKS = [
    Check("fine", lambda device: f"on {device}"), Check("wrong", wrong), Check("absent", absent), Check("crash", crash),
    Check("broken", lambda device: 1 / 0),
    Check("large", crash, large=True),
]
BUILDS = []
"""
LOOKS = """
import json
from pathlib import Path
from tests.kernels.check import Check

def look(device):
    [file] = Path("{folder}").glob("*-cpu-check.json")
    found = json.loads(file.read_text())
    return f"{{found['counts']}} of {{found['jobs']}}"

CHECKS = [Check("fine", lambda device: None), Check("look", look)]
BUILDS = []
"""
TURNS = """
import time
from pathlib import Path
from tests.kernels.check import Check

FOLDER = Path("{folder}")

def busy(name, device):
    (FOLDER / name).touch()
    time.sleep(0.5)
    (FOLDER / name).unlink()

def alone(name, device):
    assert list(FOLDER.glob("check-*")) == [], "another check runs"
    busy(name, device)

CHECKS = [
    Check("a", lambda device: busy("check-a", device)), Check("b", lambda device: busy("check-b", device)),
    Check("c", lambda device: alone("check-c", device), alone=True),
    Check("d", lambda device: alone("check-d", device), alone=True),
    Check("e", lambda device: busy("check-e", device)),
]
BUILDS = []
"""
HANGS = """
import time
from tests.kernels.check import Check

CHECKS = [Check("hang", lambda device: time.sleep(3600))]
BUILDS = []
"""


def test_every_end_of_a_check_is_reported(tmp_path: Path) -> None:
    (tmp_path / "odd_checks.py").write_text(ODD)
    modules = ["--module=tests.kernels.grouping_checks", "--module=odd_checks"]
    command = [sys.executable, "-m", "tests.kernels.gpu_check", "--device=cpu", f"--out={tmp_path}", *modules]
    path = os.pathsep.join([str(ROOT), str(ROOT / "engine"), str(tmp_path)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    limits = ["--workers=1", "--seed=1"]
    result = subprocess.run(
        [*command, *limits], env=environment, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200
    )
    assert result.returncode == 1, result.stderr[-2000:]
    [file] = tmp_path.glob("*-cpu-check.json")
    found = json.loads(file.read_text())
    odd = {each["check"]: each for each in found["checks"] if each["module"] == "odd_checks"}
    assert {name: each["status"] for name, each in odd.items()} == {
        "fine": "passed",
        "wrong": "failed",
        "absent": "not checked",
        "crash": "failed",
        "broken": "failed",
    }
    assert odd["fine"]["said"] == "on cpu"
    assert "they differ" in odd["wrong"]["said"]
    assert "exit code 3" in odd["crash"]["said"]
    assert "ZeroDivisionError" in odd["broken"]["said"]
    others = [each for each in found["checks"] if each["module"] != "odd_checks"]
    assert others and all(each["status"] == "passed" for each in others)
    assert found["counts"] == {"passed": 1 + len(others), "failed": 3, "not checked": 1}
    assert "| odd | 1 | 3 | 1 |" in result.stdout
    assert "torch" in found["device"]["versions"]


def test_a_check_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_checks.py").write_text(HANGS)
    monkeypatch.syspath_prepend(tmp_path)
    args = parse(["--device=cpu", "--check-seconds=0.5", "--workers=1", f"--out={tmp_path}"])
    [outcome] = run([Job("hanging_checks", "hang")], args)
    assert (outcome.status, "hangs" in outcome.said) == ("failed", True)


def test_what_measures_the_devices_memory_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are measured by what is free on the device before and after, which others would change; they come last."""
    (tmp_path / "turns_checks.py").write_text(TURNS.format(folder=tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    args = parse(["--device=cpu", "--workers=2", f"--out={tmp_path}"])
    outcomes = run(jobs_of(["turns_checks"], "cpu", None), args)
    assert [(outcome.check, outcome.status) for outcome in outcomes] == [(name, "passed") for name in "abecd"]
    graphs = [check for check in whole_model_checks.CHECKS if check.name.startswith("graphs_")]
    assert len(graphs) == 6 and all(check.alone for check in graphs)


def test_what_there_is_no_time_for_counts_as_not_checked(tmp_path: Path) -> None:
    args = parse(["--device=cpu", "--seconds=0", f"--out={tmp_path}"])
    outcomes = run([Job("tests.kernels.grouping_checks", "any")], args)
    assert [outcome.status for outcome in outcomes] == ["not checked"]
    assert "the time was over" in table(outcomes)


def test_each_outcome_is_written_when_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lent machine may be taken away at any time: the second check sees the first one's."""
    (tmp_path / "looking_checks.py").write_text(LOOKS.format(folder=tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    args = parse(["--device=cpu", "--workers=1", f"--out={tmp_path}"])
    outcomes = run([Job("looking_checks", "fine"), Job("looking_checks", "look")], args)
    assert outcomes[1].status == "passed", outcomes[1].said
    assert "'passed': 1" in outcomes[1].said and "of 2" in outcomes[1].said


def test_what_most_models_call_comes_first() -> None:
    names = [module.__name__ for module in modules()]
    order = [name.rpartition(".")[2] for name in dict.fromkeys(job.module for job in jobs_of(names, "cuda", None))]
    assert order[:2] == ["norm_checks", "rope_checks"]
    assert order.index("paged_attention_checks") < order.index("sampling_checks") < order.index("whole_model_checks")
    assert order.index("moe_checks") < order.index("gated_delta_net_checks") < order.index("backend_checks")
    assert len(jobs_of(names, "cpu", None)) < len(jobs_of(names, "cuda", None)), "large ones are for hardware"
    assert len(jobs_of(names, "cuda", 1)) == len(names), "a limit is each module's own"


@pytest.mark.parametrize("model", [whole_model_checks.TINY_QWEN3_NEXT, whole_model_checks.TINY_DEEPSEEK])
def test_models_of_other_mixers_are_compared_as_well(model: whole_model_checks.Tiny) -> None:
    said = whole_model_checks.parity(model, (1, 17), 4, torch.device("cpu"))
    assert "top-1 agreement" in said


def test_a_whole_model_is_as_near_to_the_exact_answers_as_transformers_is(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    said = whole_model_checks.parity(TINY_LLAMA, (1, 17), 4, device)
    assert "top-1 agreement 1.000" in said
    truth = whole_model_checks.generate

    def shifted(*arguments: Any, **settings: Any) -> Any:
        answers = truth(*arguments, **settings)
        for answer in answers:
            answer.logprobs = [replace(entry, logprob=entry.logprob - 0.05) for entry in answer.logprobs]
        return answers

    monkeypatch.setattr(whole_model_checks, "generate", shifted)
    with pytest.raises(AssertionError, match="rms"):
        whole_model_checks.parity(TINY_LLAMA, (1, 17), 4, device)


def test_adapters_beside_each_other_are_compared_with_merged_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    case = TINY_LLAMA, (3, 16), (1, 17, 5), 2, torch.device("cpu")
    assert "6 of 6 tokens equal" in adapted_model_checks.merged_equal(*case)
    generate = adapted_model_checks.generate

    def without(*arguments: Any, adapters: Any = None, **settings: Any) -> Any:
        return generate(*arguments, **settings)

    monkeypatch.setattr(adapted_model_checks, "generate", without)
    with pytest.raises(AssertionError, match="instead of"):
        adapted_model_checks.merged_equal(*case)


@pytest.mark.parametrize("module", [whole_model_checks, adapted_model_checks])
def test_graphs_are_not_checked_without_a_gpu(module: Any) -> None:
    graphs = [check for check in module.CHECKS if check.name.startswith("graphs_")]
    assert graphs and all(check.alone for check in graphs)
    for check in graphs:
        with pytest.raises(NotCheckedError, match="need a GPU"):
            check.run(torch.device("cpu"))
