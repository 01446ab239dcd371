"""The choice of how ranks sum. Symmetric memory needs two GPUs, so stand-ins take its place here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup import worker_setup
from octavo_engine.model.tensor_parallel import collectives
from octavo_engine.model.tensor_parallel.collectives import Collectives, SymmetricSums, small_sums
from octavo_engine.model.tensor_parallel.shard import Shard

CPU = torch.device("cpu")
SHARD = Shard(1, 4)


class Backend:
    """A group of four ranks, whose three others all have the value `others`."""

    def __init__(self, others: int) -> None:
        self.others, self.sums = others, 0

    def allreduce(self, tensors: list[torch.Tensor]) -> Backend:
        tensors[0].add_(3 * self.others)
        self.sums += tensors[0].dtype == torch.int32  # what ranks say of themselves
        return self

    def wait(self) -> None:
        """It is done."""


class Doubling:
    """Takes up to eight numbers."""

    def takes(self, x: torch.Tensor) -> bool:
        return x.numel() <= 8

    def all_reduce(self, x: torch.Tensor) -> None:
        x.mul_(2)


def test_small_sums_go_one_way_and_all_others_the_other():
    ranks = Collectives(SHARD, Backend(others=5), Doubling())
    assert ranks.all_reduce(torch.ones(2, 4)).tolist() == [[2.0] * 4] * 2
    assert ranks.all_reduce(torch.ones(3, 4)).tolist() == [[16.0] * 4] * 3
    assert Collectives(SHARD, Backend(others=5)).all_reduce(torch.ones(2)).tolist() == [16.0, 16.0]


def test_what_symmetric_memory_takes():
    sums = SymmetricSums(SHARD, dist.HashStore(), CPU, torch.bfloat16)
    numbers = torch.zeros(1 << 20, dtype=torch.bfloat16)
    limit = 128 * 1024  # numbers in 256 KiB
    assert sums.takes(numbers[:limit].view(32, -1))
    assert sums.takes(numbers[8:16])
    assert not sums.takes(numbers[: limit + 8]), "too many"
    assert not sums.takes(numbers[:12]), "24 bytes"
    assert not sums.takes(numbers[4:12]), "begins at byte 8"
    assert not sums.takes(numbers.view(1024, 1024)[:8, :8]), "not in one piece"
    assert not sums.takes(numbers[:8].float()), "of another type"
    assert not sums.takes(numbers[:0])


def fails() -> None:
    raise RuntimeError("no such memory")


@pytest.mark.parametrize(
    ("prepare", "meet", "more", "others", "chosen", "asked"),
    [
        (lambda: None, lambda: None, 3, 1, True, 3),
        (fails, lambda: None, 3, 1, False, 1),
        (lambda: None, fails, 3, 1, False, 2),
        (lambda: None, lambda: None, 4, 1, False, 3),
        (lambda: None, lambda: None, 3, 0, False, 1),
    ],
    ids=[
        "all can", "this one lacks it", "this one cannot reach the others", "its sums are wrong", "another one lacks it"
    ],
)  # fmt: skip
def test_all_ranks_use_symmetric_memory_or_none(
    prepare: Callable[[], None], meet: Callable[[], None], more: int, others: int, chosen: bool, asked: int, monkeypatch
) -> None:
    """None goes on to meet the others, to try it, or to use it, before all have said that they can."""
    monkeypatch.setattr(SymmetricSums, "prepare", lambda _: prepare())
    monkeypatch.setattr(SymmetricSums, "meet", lambda _: meet())
    monkeypatch.setattr(SymmetricSums, "all_reduce", lambda _, x: x.add_(more))
    backend = Backend(others)
    sums = small_sums(SHARD, backend, dist.HashStore(), CPU, torch.bfloat16)
    assert (sums is not None, backend.sums) == (chosen, asked)


def test_prepare_raises_where_symmetric_memory_cannot_be_used(monkeypatch):
    """Other types; GPUs without a link, this one's own left out; a second group of the same process."""
    reached: list[int] = []
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _, rank: reached.append(rank) or rank != 3)
    store = dist.HashStore()
    with pytest.raises(RuntimeError, match="float16"):
        SymmetricSums(SHARD, store, CPU, torch.float16).prepare()
    with pytest.raises(RuntimeError, match="do not reach each other"):
        SymmetricSums(SHARD, store, CPU, torch.bfloat16).prepare()
    assert reached == [0, 2, 3]
    pair = [SymmetricSums(Shard(0, 2), store, CPU, torch.bfloat16) for _ in range(2)]
    with pytest.raises(RuntimeError, match="does not support device type cpu"):
        pair[0].prepare()
    with pytest.raises(RuntimeError, match="already registered"):
        pair[1].prepare()
    assert not dist.is_initialized()


def test_gpus_speak_over_nccl_and_ask_for_symmetric_memory(monkeypatch, tmp_path):
    backend, small = Backend(others=1), Doubling()
    asked = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", lambda store, rank, size, timeout: backend)
    monkeypatch.setattr(collectives, "small_sums", lambda *given: asked.append(given) or small)
    device = torch.device("cuda", 1)
    ranks = collectives.connect(SHARD, str(tmp_path / "rendezvous"), device, torch.bfloat16)
    assert ranks.all_reduce(torch.ones(1)).tolist() == [2.0]
    assert ranks.all_reduce(torch.ones(9)).tolist() == [4.0] * 9
    [(shard, given, store, where, dtype)] = asked
    assert (shard, given, where, dtype) == (SHARD, backend, device, torch.bfloat16)
    assert isinstance(store, dist.Store)


def test_the_trial_of_symmetric_memory_can_be_switched_off(monkeypatch, tmp_path):
    """By --disable-custom-all-reduce: where a trial hangs or disturbs the device, a start must be possible."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", lambda store, rank, size, timeout: Backend(others=1))
    monkeypatch.setattr(collectives, "small_sums", lambda *_: pytest.fail("it was tried"))
    config = EngineConfig(model="x", disable_custom_all_reduce=True)
    resolved = SimpleNamespace(device=torch.device("cuda", 1), dtype=torch.bfloat16)
    setup = SimpleNamespace(config=config, resolved=resolved, shard=SHARD, rendezvous=str(tmp_path / "rendezvous"))
    ranks = worker_setup._connect_ranks(setup)
    assert ranks.all_reduce(torch.ones(1)).tolist() == [4.0]
