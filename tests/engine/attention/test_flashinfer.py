"""FlashInfer as a backend: our calls to it, and that it is selected only if it is installed and correct.

There is no GPU here: stand-ins with the same arguments take the place of its functions (fake_flashinfer.py).
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import fake_flashinfer
import pytest
import torch
from paging import make_batch, plain_attention, poisoned_cache, projection, unrotated
from recorded import WAITING, RecordedOperations
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from octavo_engine.attention import autotune, cross_check, flashinfer, select, varlen
from octavo_engine.attention.backend import AttentionTask, AttentionVariant, KVGroupSpec
from octavo_engine.attention.context import write_heads
from octavo_engine.attention.cross_check import cross_checked
from octavo_engine.attention.flashinfer import FlashInferAttention, why_not
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.errors import ConfigurationError, EngineDeadError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FULL, WINDOW = KVGroupSpec("full", (0,), 2, 64), KVGroupSpec("sliding", (1,), 2, 64, 40)
TASK = AttentionTask((FULL, WINDOW), 16, torch.bfloat16, torch.bfloat16, 8)
LENS = {
    "decodes": [(1, 1), (1, 16), (1, 17), (1, 100)],
    "chunks": [(7, 7), (16, 32), (5, 50), (33, 64)],
    "mixed": [(1, 40), (1, 1), (7, 7), (1, 65), (20, 45)],
}


class ByTorch(FlashInferAttention):
    """The backend with caches that are written without Triton."""

    def write(self, cache: Any, key: Tensor, value: Tensor, metadata: Any) -> None:
        TorchAttention().write(cache, key, value, metadata.torch)

    def fused_write(self, *_: Any) -> None:
        return None

    def prepare(self, inputs: Any, group: int, block_size: int, window: int | None) -> Any:
        metadata = super().prepare(inputs, group, block_size, window)
        return WithTorch(metadata, TorchAttention().prepare(inputs, group, block_size, window))


class WithTorch:
    """Metadata of both."""

    def __init__(self, ours: Any, torch_metadata: Any) -> None:
        self.ours, self.torch = ours, torch_metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ours, name)


class Waits(TorchDispatchMode):
    """Fails where the host would wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name.removeprefix("aten::") not in WAITING
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flashinfer.install(monkeypatch)


def written(batch: Any) -> Any:
    """A cache with the batch's keys and values, NaN elsewhere."""
    writer = TorchAttention()
    cache = poisoned_cache(writer, batch)
    metadata = writer.prepare(batch.inputs, 0, batch.block_size, batch.group.window)
    write_heads(writer, cache, projection(batch), unrotated(batch.query), None, metadata)
    return cache


@pytest.mark.parametrize("lens", LENS.values(), ids=LENS)
@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize(("heads", "kv_heads", "block_size"), [(2, 2, 16), (8, 1, 128)])
def test_attends_as_everybody(lens: Any, window: int | None, heads: int, kv_heads: int, block_size: int) -> None:
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": 64, "block_size": block_size, "window": window}
    batch = make_batch(lens, **sizes, dtype=torch.bfloat16)
    cache, backend = written(batch), FlashInferAttention()
    with Waits():
        metadata = backend.prepare(batch.inputs, 0, block_size, window)
    wide = torch.cat((batch.query, batch.step_key), dim=1)  # queries are a slice of the projection
    output = backend.attend(wide[:, :heads], cache, metadata, AttentionVariant(64**-0.5))
    torch.testing.assert_close(output.double(), plain_attention(batch), rtol=2e-2, atol=2e-2)


def test_a_step_is_planned_once_for_all_layers_of_a_group() -> None:
    """Groups in turns, as layers are; a layer with another scale is planned for anew."""
    batch = make_batch(LENS["mixed"], heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    windowed = make_batch(LENS["mixed"], heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16, window=20)
    tables = batch.inputs.block_tables * 2
    inputs = replace(batch.inputs, block_tables=tables, slot_mapping=batch.inputs.slot_mapping * 2)
    cache, backend = written(batch), FlashInferAttention()
    steps = [backend.prepare(inputs, 0, 16, None), backend.prepare(inputs, 1, 16, 20)]
    for expected in (plain_attention(batch), plain_attention(windowed)) * 2:
        metadata = steps.pop(0)
        steps.append(metadata)
        output = backend.attend(batch.query, cache, metadata, AttentionVariant(64**-0.5))
        torch.testing.assert_close(output.double(), expected, rtol=2e-2, atol=2e-2)
    wrappers = fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper.made
    assert [len(wrapper.plans) for wrapper in wrappers] == [1, 1]
    backend.attend(batch.query, cache, steps[0], AttentionVariant(0.5))
    assert [plan["sm_scale"] for plan in wrappers[0].plans] == [64**-0.5, 0.5]
    backend.attend(batch.query, cache, backend.prepare(inputs, 0, 16, None), AttentionVariant(0.5))
    assert len(wrappers[0].plans) == 3


def test_decodes_can_be_recorded_and_padded() -> None:
    """A recording of short contexts computes long ones; padding changes no other row and gives no NaN."""
    batch = make_batch([(1, 100), (1, 33), (1, 1)], heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    cache, backend = written(batch), FlashInferAttention()
    cache.key[0], cache.value[0] = 1, 1  # padding's blocks are block 0, which another request owns
    inputs = replace(
        batch.inputs,
        positions=torch.zeros(4, dtype=torch.int64),
        context_lens=torch.tensor([1, 1, 1, 0], dtype=torch.int32),
        block_tables=(torch.nn.functional.pad(batch.inputs.block_tables[0], (0, 0, 0, 1)),),
        query_lens_host=(1,) * 4,
    )
    query, output = torch.cat((batch.query, batch.query[:1])), torch.empty(4, 4, 64, dtype=torch.bfloat16)

    def step() -> None:
        metadata = backend.prepare(inputs, 0, 16, None)
        output.copy_(backend.attend(query, cache, metadata, AttentionVariant(64**-0.5)))

    (replay,) = RecordedOperations().capture([step])
    inputs.context_lens[:3].copy_(batch.inputs.context_lens)
    replay()
    torch.testing.assert_close(output[:3].double(), plain_attention(batch), rtol=2e-2, atol=2e-2)
    assert bool(output[3].isfinite().all())


def test_tokens_of_no_sequence_give_zeros() -> None:
    batch = make_batch([(1, 5), (3, 20), (2, 9)], heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    fewer = replace(
        batch.inputs,
        context_lens=batch.inputs.context_lens[:2],
        block_tables=(batch.inputs.block_tables[0][:2],),
        query_lens_host=(1, 3),
        context_lens_host=(5, 20),
    )
    backend = FlashInferAttention()
    metadata = backend.prepare(fewer, 0, 16, None)
    output = backend.attend(batch.query, written(batch), metadata, AttentionVariant(64**-0.5))
    torch.testing.assert_close(output[:4].double(), plain_attention(batch)[:4], rtol=2e-2, atol=2e-2)
    assert not output[4:].any()


def test_memory_is_within_what_is_planned() -> None:
    """Counted are the stand-ins' buffers, and the 8 MiB that each real prefill allocates for its plan."""
    backend = FlashInferAttention()
    for group in (0, 1):
        batch = make_batch(LENS["mixed"], heads=8, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
        inputs = replace(
            batch.inputs, block_tables=batch.inputs.block_tables * 2, slot_mapping=batch.inputs.slot_mapping * 2
        )
        backend.attend(batch.query, written(batch), backend.prepare(inputs, group, 16, None), AttentionVariant(1.0))
    kept = sum(len(workspace) for workspace in backend._workspaces.values()) + 2 * (flashinfer._PLAN_BYTES + (8 << 20))
    assert kept < backend.scratch_bytes(TASK, FULL, 100, 10, 1000) < kept + (8 << 20)


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": torch.float32, "kv_dtype": torch.float32},
        {"kv_dtype": torch.float8_e4m3fn},
        {"plain": False},
        {"block_size": 24},
        {"groups": (replace(FULL, head_dim=80),)},
        {"num_heads": 66},
    ],
    ids=str,
)
def test_what_it_cannot_compute_is_left_to_others(changed: dict[str, Any]) -> None:
    assert why_not(CUDA, TASK) is None
    assert "it is for half precision" in str(why_not(CUDA, replace(TASK, **changed)))


def test_without_the_package_or_with_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        """A package whose parts are of different versions: importing it raises."""

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("flashinfer-jit-cache is of another version")

    for name in ("flashinfer", "flashinfer.decode", "flashinfer.prefill"):
        monkeypatch.delitem(sys.modules, name)
    assert why_not(CUDA, TASK) == "there is no module flashinfer"
    with pytest.raises(ConfigurationError, match="--attention-backend flashinfer: there is no module flashinfer"):
        select.select_backend("flashinfer", CUDA, TASK)
    monkeypatch.setitem(sys.modules, "flashinfer", Broken("flashinfer"))
    assert "cannot be imported: flashinfer-jit-cache is of another version" in str(why_not(CUDA, TASK))


def test_it_is_for_gpus() -> None:
    with pytest.raises(ConfigurationError, match="flashinfer: needs a GPU"):
        select.select_backend("flashinfer", CPU, TASK)
    assert select.select_backend("flashinfer", CUDA, TASK).name == "flashinfer"


class Wrong(ByTorch):
    """A little."""

    name = "wrong"

    def attend(self, *args: Any) -> Tensor:
        return super().attend(*args) * 1.1


class ReadsBeyond(TorchAttention):
    """A block that was never written, without giving it any weight."""

    name = "reads_beyond"

    def allocate(self, group: KVGroupSpec, num_blocks: int, *args: Any) -> Any:
        return super().allocate(group, num_blocks + 1, *args)

    def attend(self, query: Tensor, cache: Any, *args: Any) -> Tensor:
        return super().attend(query, cache, *args) + 0 * cache.value[-1].sum()


class Fails(TorchAttention):
    name = "fails"

    def attend(self, *args: Any) -> Tensor:
        raise OSError("no nvcc")


def test_only_backends_that_agree_with_ours_may_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """Also both groups are looked at, without other random numbers than its own."""
    before = torch.get_rng_state()
    with caplog.at_level(logging.INFO):
        agreed = cross_checked([TorchAttention(), Wrong(), ByTorch(), ReadsBeyond(), Fails()], TASK, CPU)
    assert [backend.name for backend in agreed] == ["torch", "flashinfer"]
    assert "attention backend wrong is not used: its results differ by 0." in caplog.text
    assert "attention backend reads_beyond is not used: its results differ by nan" in caplog.text
    assert "attention backend fails is not used: no nvcc (compared with ours)" in caplog.text
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_device_is_not_compared_on() -> None:
    class Broken(TorchAttention):
        def attend(self, *args: Any) -> Tensor:
            raise torch.AcceleratorError("illegal address")

    with pytest.raises(EngineDeadError, match="--attention-backend triton"):
        cross_checked([TorchAttention(), Broken()], TASK, CPU)
    with pytest.raises(torch.AcceleratorError):  # ours, and no other is blamed
        cross_checked([Broken(), TorchAttention()], TASK, CPU)


@pytest.mark.parametrize(("agrees", "chosen", "reason"), [(True, "flashinfer", "quickest"), (False, "triton", "only")])
def test_it_is_chosen_where_it_is_the_quickest_and_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, agrees: bool, chosen: str, reason: str
) -> None:
    entry = replace(select.BACKENDS["flashinfer"], verified_on_gpu=True)
    monkeypatch.setitem(select.BACKENDS, "flashinfer", entry)  # type: ignore[misc]
    times = {"triton": 2e-5, "flashinfer": 1e-5}
    monkeypatch.setattr(varlen, "why_not", lambda *_: "not now")
    monkeypatch.setattr(autotune, "DeviceMeasure", lambda task, device: lambda backend, trial: times[backend.name])
    results = {"triton": torch.zeros(3), "flashinfer": torch.full((3,), 1e-3 if agrees else 1.0)}
    monkeypatch.setattr(cross_check, "_results", lambda backend, *_: results[backend.name])
    with caplog.at_level(logging.INFO):
        assert select.select_backend("auto", CUDA, TASK).name == chosen
    assert f"attention backend: {chosen} (the {reason}" in caplog.text
    assert select.select_backend("auto", CUDA, TASK, measure=False).name == "triton", "unmeasured it is ours"
