"""The measurement of up to how many tokens a way to multiply is the quicker one, and the file that keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from c_kernels import needs_kernels

from octavo_engine.kernels.cpu.features import CPUFeatures
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.layers.operations import choose_compute as choosing
from octavo_engine.model.layers.operations import measured_crossovers as measuring
from octavo_engine.model.layers.operations.choose_compute import choose_compute
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.measured_crossovers import (
    TOKENS,
    Way,
    crossover,
    measure,
    measured_crossovers,
)
from octavo_engine.model.source import resolve_model
from octavo_engine.model.tensor_parallel.shard import Shard

BF16 = torch.bfloat16


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The CPU seconds that this thread has taken."""
    seconds = [0.0]
    monkeypatch.setattr(measuring.time, "thread_time", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize(
    ("few_each", "many_fixed", "found"),
    [(2, 8, 8), (2, 0, 0), (1, 100, None), (1.04, 0, None)],
    ids=["quicker for few", "always slower", "always quicker", "as quick"],
)
def test_the_crossover_is_the_last_number_at_which_the_first_way_is_not_slower(
    clock: list[float], few_each: float, many_fixed: float, found: int | None
) -> None:
    def few(x: torch.Tensor) -> None:
        clock[0] += few_each * len(x)

    def many(x: torch.Tensor) -> None:
        clock[0] += many_fixed + len(x)

    assert crossover(few, many, BF16) == found


@pytest.mark.parametrize(("slow", "found"), [([1], None), ([64], None), ([256], 128), ([4, 6], 2)])
def test_one_number_of_tokens_decides_nothing(clock: list[float], slow: list[int], found: int | None) -> None:
    def few(x: torch.Tensor) -> None:
        clock[0] += 2 if len(x) in slow else 1

    assert crossover(few, lambda _: clock.__setitem__(0, clock[0] + 1), BF16) == found


def test_one_slow_measurement_decides_nothing(clock: list[float]) -> None:
    """A page fault, or another program that has emptied the cache."""
    calls = []

    def few(x: torch.Tensor) -> None:
        calls.append(len(x))
        clock[0] += 1000 if calls.count(len(x)) == 1 else 1

    assert crossover(few, lambda _: clock.__setitem__(0, clock[0] + 1), BF16) is None


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The arguments of all measurements, each of which finds one more token."""
    calls: list[tuple[object, ...]] = []

    def found(*given: object, quantized: bool) -> Crossovers:
        calls.append((*given, quantized))
        return Crossovers(codes=TOKENS[len(calls)])

    monkeypatch.setattr(measuring, "measure", found)
    return calls


def as_a_new_process(**changes: object) -> Crossovers:
    measured_crossovers.cache_clear()
    try:
        given = {"kernels": None, "path": "kernels", "dtype": BF16, "quantized": True, **changes}
        return measured_crossovers(**given)
    finally:
        measured_crossovers.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "octavo" / "kernels"


def test_what_is_measured_is_kept_for_this_cpu(
    measured: list[tuple[object, ...]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    first = as_a_new_process()
    assert f"in tokens: codes <= {TOKENS[1]}, interleaved any, narrow <= 8, kernels <= 64" in caplog.text
    assert as_a_new_process() == first
    assert len(measured) == len(list(folder.iterdir())) == 1
    assert as_a_new_process(dtype=torch.float32) != first
    assert as_a_new_process(path="kernels and float32") != first
    assert as_a_new_process(path="kernels and float32", quantized=False) != first
    monkeypatch.setattr(measuring, "cpu_model", lambda: "another")
    assert as_a_new_process() != first
    assert len(measured) == 5


@pytest.mark.parametrize("path", ["torch", "kernels"])
def test_nothing_is_measured_where_there_is_one_way(measured: list[tuple[object, ...]], path: str) -> None:
    assert as_a_new_process(path=path, quantized=False) == Crossovers()
    assert not measured


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"codes": "8"}', '{"codes": 7}', '{"codes": -1}', '{"kernels": null}', '{"more": 1}'],
)
def test_a_file_that_this_code_has_not_written_is_measured_again(
    measured: list[tuple[object, ...]], folder: Path, text: str
) -> None:
    as_a_new_process()
    (file,) = folder.iterdir()
    file.write_text(text)
    assert as_a_new_process() == Crossovers(codes=TOKENS[2])
    assert as_a_new_process() == Crossovers(codes=TOKENS[2])


def test_without_a_folder_each_process_measures(measured: list[tuple[object, ...]], folder: Path) -> None:
    folder.parent.parent.joinpath("octavo").write_text("in the way of the folder")
    assert [as_a_new_process(), as_a_new_process()] == [Crossovers(codes=count) for count in TOKENS[1:3]]


def test_several_ranks_take_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may measure others, and a router that all have must round alike on all."""
    monkeypatch.setattr(choosing, "measured_crossovers", lambda *_, **__: pytest.fail("measured"))
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: None)
    monkeypatch.setattr(choosing, "torch_compute", lambda _, crossovers: crossovers)
    spec = read_spec(resolve_model("smollm2", None, lambda *_: None))
    for amx, interleaved in ((False, None), (True, 128)):
        monkeypatch.setattr(choosing, "cpu_features", lambda amx=amx: CPUFeatures(avx2=True, amx=amx))
        found = choose_compute(spec, BF16, torch.device("cpu"), Shard(0, 2))
        assert found == Crossovers(interleaved=interleaved)


@needs_kernels
def test_each_path_measures_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(measuring, "crossover", lambda *given: asked.append(given) or None)
    monkeypatch.setattr(measuring, "_ROWS", 64)
    threads, kernels = torch.get_num_threads(), cpu_kernels()
    counts = {}
    for path in ("torch", "torch in float32"):
        counts[path] = [measure(None, path, BF16, quantized=True), len(asked)]
    for path in ("kernels", "kernels and float32"):
        counts[path] = [measure(kernels, path, BF16, quantized=quantized) for quantized in (False, True)] + [len(asked)]
    none = Crossovers(codes=None, interleaved=None)
    assert counts == {
        "torch": [Crossovers(), 0],
        "torch in float32": [Crossovers(narrow=None), 1],
        "kernels": [Crossovers(), none, 3],
        "kernels and float32": [Crossovers(kernels=TOKENS[-1]), replace(none, kernels=TOKENS[-1]), 7],
    }
    assert torch.get_num_threads() == threads


@needs_kernels
def test_the_ways_that_are_measured_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(few: Way, many: Way, dtype: torch.dtype) -> int:
        x = torch.ones(3, measuring._COLUMNS, dtype=dtype)
        ours, other = few(x), many(x)
        assert ours.dtype == other.dtype == dtype
        assert float((ours.float() / other.float() - 1).abs().max()) < 0.01
        return 0

    monkeypatch.setattr(measuring, "crossover", compared)
    monkeypatch.setattr(measuring, "_ROWS", 64)
    assert measure(cpu_kernels(), "kernels and float32", BF16, quantized=True) == Crossovers(0, 0, kernels=0)
