"""The selection of an attention backend, and the backend of PyTorch's own attention, compared with ours.

There is no GPU here: stand-ins give the times, and one computes `varlen_attn` as documented.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from paging import make_batch, plain_attention, poisoned_cache, projection, unrotated
from torch import Tensor
from torch.nn.attention import varlen

from octavo_engine.attention import autotune, cross_check, select
from octavo_engine.attention import varlen as varlen_module
from octavo_engine.attention.autotune import LIMIT, TRIALS, Trial, attention_work, choose, step_of
from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec
from octavo_engine.attention.context import write_heads
from octavo_engine.attention.registry import BACKENDS
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.varlen import VarlenAttention
from octavo_engine.commands import pull
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup import sizing
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, resolve_config
from octavo_engine.errors import ConfigurationError, EngineDeadError
from octavo_engine.model.source import resolve_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TASK = AttentionTask((KVGroupSpec("full", (0, 1), 2, 16),), 16, torch.float32, torch.float32, 4)


class Named(TorchAttention):
    """A backend of which only the name counts."""

    def __init__(self, name: str) -> None:
        self.name = name


def timed(**times: list[float | Exception]) -> Any:
    """A measure that gives each backend's times, one a trial, and what was asked."""
    left = {name: iter(values) for name, values in times.items()}
    asked: list[tuple[str, str]] = []

    def measure(backend: Named, trial: Trial) -> float:
        asked.append((backend.name, trial.name))
        time = next(left[backend.name])
        if isinstance(time, Exception):
            raise time
        return time

    return measure, asked


def backends(*names: str) -> list[Any]:
    return [Named(name) for name in names]


def test_the_quickest_over_all_trials_is_chosen_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each trial counts alike: twice as quick in three small ones is more than three times as slow in a large one."""
    measure, asked = timed(one=[2e-5, 3e-3, 2e-5, 4e-5], two=[1e-5, 9e-3, 1e-5, 2e-5])
    with caplog.at_level(logging.INFO):
        assert choose(backends("one", "two"), measure) == "two"
    assert asked == [(name, trial.name) for trial in TRIALS for name in ("one", "two")]
    assert "attention backends, decode of 16 at 2,048: one 20 µs, two 10 µs" in caplog.text
    assert "prefill of 1,024: one 3,000 µs, two 9,000 µs" in caplog.text


def test_who_fails_is_out(caplog: pytest.LogCaptureFixture) -> None:
    measure, asked = timed(
        one=[3e-5, 3e-5, 3e-5, 3e-5],
        two=[1e-5, RuntimeError("no blocks of 16"), 1e-5],
        three=[4e-5] * 4,
        four=[OSError("no nvcc")],
    )
    with caplog.at_level(logging.INFO):
        assert choose(backends("one", "two", "three", "four"), measure) == "one"
    assert "attention backend four is not used: no nvcc" in caplog.text
    assert "attention backend two is not used: no blocks of 16 (prefill of 1,024)" in caplog.text
    assert [trial for name, trial in asked if name == "two"] == [trial.name for trial in TRIALS[:2]]


def test_one_that_is_left_is_not_measured_further_and_none_is_the_first() -> None:
    measure, asked = timed(one=[1e-5], two=[ValueError("no")])
    assert choose(backends("one", "two"), measure) == "one"
    assert len(asked) == 2
    measure, asked = timed(one=[RuntimeError()], two=[RuntimeError()])
    assert choose(backends("one", "two"), measure) == "one"


def test_a_broken_device_is_not_measured_on_and_the_message_says_how_to_do_without() -> None:
    broken = torch.AcceleratorError("illegal address\nSearch for `cudaErrorIllegalAddress'.\n")
    measure, _ = timed(one=[broken], two=[1.0])
    said = r"one broke the device .* --attention-backend triton, which tries no other \(.*: illegal address\)$"
    with pytest.raises(EngineDeadError, match=said) as raised:
        choose(backends("one", "two"), measure)
    assert "\n" not in str(raised.value)  # else the last lines of a pod's log would not tell


def test_a_device_that_our_own_kernels_broke_is_no_others_fault() -> None:
    measure, _ = timed(triton=[torch.AcceleratorError("illegal address")], two=[1.0])
    with pytest.raises(torch.AcceleratorError):
        choose(backends("triton", "two"), measure)


def test_slow_trials_end_the_measuring() -> None:
    measure, asked = timed(one=[LIMIT] * 4, two=[2 * LIMIT] * 4)
    assert choose(backends("one", "two"), measure) == "one"
    assert len(asked) == 2


def test_one_candidate_is_not_measured(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """torch 2.11 is such a case: its varlen_attn has no block tables."""

    def old(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor) -> Tensor:
        raise AssertionError

    monkeypatch.setattr(varlen, "varlen_attn", old)
    monkeypatch.setattr(autotune, "DeviceMeasure", None)
    with caplog.at_level(logging.INFO):
        assert select.select_backend("auto", CUDA, TASK).name == "triton"
    assert "varlen is not used: varlen_attn of torch" in caplog.text
    assert "attention backend: triton (the default, on cuda)" in caplog.text
    with pytest.raises(ConfigurationError, match="--attention-backend varlen: varlen_attn of torch"):
        select.select_backend("varlen", CUDA, TASK)


def test_what_has_not_run_on_a_gpu_is_taken_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the device there would end each start of a pod again."""
    monkeypatch.setattr(autotune, "DeviceMeasure", None)
    monkeypatch.setattr(cross_check, "cross_checked", None)
    for name in ("varlen", "flashinfer"):
        monkeypatch.setattr(select._module(name), "why_not", lambda *_: None)
    with caplog.at_level(logging.INFO):
        assert select.select_backend("auto", CUDA, TASK).name == "triton"
    assert (
        "varlen is not used: it has not run on a GPU yet; --attention-backend varlen selects it nevertheless"
        in caplog.text
    )
    assert "flashinfer is not used: it has not run on a GPU yet" in caplog.text
    assert select.select_backend("varlen", CUDA, TASK).name == "varlen"


def test_several_candidates_are_measured(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once one has run on a GPU."""
    monkeypatch.setitem(select.BACKENDS, "varlen", replace(BACKENDS["varlen"], verified_on_gpu=True))  # type: ignore[misc]
    measure, asked = timed(triton=[2e-5] * 4, varlen=[1e-5] * 4)
    monkeypatch.setattr(autotune, "DeviceMeasure", lambda task, device: measure)
    monkeypatch.setattr(varlen_module, "why_not", lambda *_: None)
    monkeypatch.setattr(cross_check, "cross_checked", lambda candidates, task, device: candidates)
    with caplog.at_level(logging.INFO):
        assert select.select_backend("auto", CUDA, TASK).name == "varlen"
    assert "attention backend: varlen (the quickest, on cuda)" in caplog.text
    assert len(asked) == 8


def test_who_only_asks_what_fits_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pull --check-memory` runs before the engine, which measures: kernels need not be compiled twice."""
    monkeypatch.setattr(autotune, "DeviceMeasure", None)
    monkeypatch.setattr(varlen_module, "why_not", lambda *_: None)
    assert select.select_backend("auto", CUDA, TASK, measure=False).name == "triton"
    asked: list[bool] = []

    def noting(*given: Any, measure: bool) -> ResolvedConfig:
        asked.append(measure)
        return resolve_config(*given, measure=measure)

    monkeypatch.setattr(sizing, "resolve_config", noting)
    config, files = EngineConfig(model="smollm2", device="cpu"), resolve_model("smollm2", None, lambda *_: None)
    assert pull._memory(config, files) == sizing.size_engine(config, files).memory_info()
    assert asked == [False, True]


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_asked_for_is_taken_unmeasured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "DeviceMeasure", None)
    monkeypatch.setattr(varlen_module, "why_not", lambda *_: None)
    assert select.select_backend(EngineConfig(model="x", attention_backend=name).attention_backend, CUDA).name == name


def test_varlen_is_for_gpus() -> None:
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        select.select_backend("varlen", CPU)


def documented_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """Attend over a block table as PyTorch's documentation says that varlen_attn does."""
    assert block_table.dtype == seqused_k.dtype == cu_seq_q.dtype == torch.int32
    assert block_table.is_contiguous()
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert cu_seq_k is None and window_size[1] == 0
    assert max_k == block_table.shape[1] * key.shape[1] >= int(seqused_k.max())
    assert max_q == int(cu_seq_q.diff().max())
    output = torch.zeros_like(query)
    for s, length in enumerate(seqused_k.tolist()):
        first, last = int(cu_seq_q[s]), int(cu_seq_q[s + 1])
        keys, values = (
            cache[block_table[s].long()].flatten(0, 1)[:length].repeat_interleave(query.shape[1] // key.shape[2], 1)
            for cache in (key, value)
        )
        places = length - (last - first) + torch.arange(last - first)[:, None]
        seen = torch.arange(length) <= places
        if window_size[0] >= 0:
            seen &= torch.arange(length) >= places - window_size[0]
        scores = torch.einsum("qhd,khd->hqk", query[first:last], keys) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        output[first:last] = torch.einsum("hqk,khd->qhd", weights, values)
    return output


@pytest.mark.parametrize("window", [None, 1, 16, 40])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_varlen_attends_as_the_reference_does(
    monkeypatch: pytest.MonkeyPatch, window: int | None, heads: int, kv_heads: int
) -> None:
    """Also that the arguments are those the installed varlen_attn takes, where it knows block tables."""
    signature = inspect.signature(varlen.varlen_attn)

    def checked(*args: Any, **kwargs: Any) -> Tensor:
        if "block_table" in signature.parameters:
            signature.bind(*args, **kwargs)
        return documented_varlen_attn(*args, **kwargs)

    monkeypatch.setattr(varlen, "varlen_attn", checked)
    lens = [(1, 40), (7, 7), (1, 1), (20, 45), (1, 65), (3, 3)]
    batch = make_batch(lens, heads=heads, kv_heads=kv_heads, head_dim=16, window=window)
    writer, backend = TorchAttention(), VarlenAttention()
    cache = poisoned_cache(writer, batch)
    written = writer.prepare(batch.inputs, 0, 16, window)
    write_heads(writer, cache, projection(batch), unrotated(batch.query), None, written)
    metadata = backend.prepare(batch.inputs, 0, 16, window)
    output = backend.attend(batch.query, cache, metadata, AttentionVariant(16**-0.5))
    torch.testing.assert_close(output.double(), plain_attention(batch), rtol=1e-4, atol=1e-5)


def test_what_is_measured_is_attention_of_the_step() -> None:
    """The work of a trial, on the CPU: every layer's query against the whole of its context."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watched(TorchAttention):
        def attend(self, query: Tensor, *args: Any) -> Tensor:
            output = super().attend(query, *args)
            seen.append((query, output))
            return output

    lens = [(1, 40), (5, 33), (1, 16)]
    attention_work(Watched(), TASK, TASK.groups[0], lens, CPU)()
    assert len(seen) == 8
    assert all(query.shape == output.shape == (7, 4, 16) for query, output in seen)
    step = step_of(lens, 16, CPU)
    assert step.cu_query_lens.tolist() == [0, 1, 6, 7]
    assert step.context_lens.tolist() == [40, 33, 16]
    assert step.positions.tolist() == [39, 28, 29, 30, 31, 32, 15]
    assert step.block_tables[0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 0, 0]]
    assert step.slot_mapping[0].tolist() == [39, 76, 77, 78, 79, 80, 111]
    assert [trial.decodes for trial in TRIALS] == [True, False, True, True]
    lengths = [step[0][0] for step in TRIALS[1].steps]
    assert len(set(lengths)) == len(lengths), "each of a shape of its own"
    assert replace(TRIALS[0], steps=TRIALS[1].steps).decodes is False
