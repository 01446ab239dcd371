"""The memory that ranks share, and how the first rank learns that another has ended."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import poor_rank
import pytest

from octavo_engine.config import EngineConfig
from octavo_engine.core.step import StepPlan
from octavo_engine.engine.startup import start_engine
from octavo_engine.engine.startup.rank import MODULE, decode_memory_plan, encode_job
from octavo_engine.errors import DoesNotFitError, EngineDeadError
from octavo_engine.model.source import ModelFiles
from octavo_engine.runner import executor
from octavo_engine.runner.device_thread import DeviceThread
from octavo_engine.runner.executor import GroupExecutor, ThreadExecutor
from octavo_engine.runner.masks import Masks
from octavo_engine.runner.ranks import rank_processes, shm_queue
from octavo_engine.runner.ranks.rank_processes import Ranks
from octavo_engine.runner.ranks.shm_queue import SharedMemoryQueue


def test_messages_arrive_whole_and_in_order_at_every_rank(monkeypatch):
    """Most of them run over the ring's end, and some are longer than all of it."""
    monkeypatch.setattr(shm_queue, "_RING", 4096)
    memory = SharedMemoryQueue.create(3)
    random_bytes = random.Random(1).randbytes
    messages = [random_bytes(length) for length in (0, 1, 4088, 4096, 20_000, *range(1, 3000, 7))]
    got: dict[int, list[bytes]] = {1: [], 2: []}

    def read(rank: int) -> None:
        view = SharedMemoryQueue(memory, 3)
        got[rank] = [view.receive(rank) for _ in messages]

    readers = [threading.Thread(target=read, args=(rank,)) for rank in got]
    for reader in readers:
        reader.start()
    writer = SharedMemoryQueue(memory, 3)
    for message in messages:
        writer.send(message, lambda: None)
    for reader in readers:
        reader.join(120)
    assert got[1] == got[2] == messages


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        (b"load\n", DoesNotFitError, "rank 1 of 2: does not fit: there are only 3 MiB"),
        (b"silent\n", EngineDeadError, "rank 1 of 2 ended with exit code 7"),
    ],
)
def test_what_a_rank_died_of_is_the_groups_error(job, error, words):
    ranks = Ranks(2, "tests.engine.runner.failing_rank", job)
    try:
        with pytest.raises(error, match=words):
            ranks.wait(Future())  # which never ends
    finally:
        ranks.kill()


class Lingering:
    """A process that is killed, and is not gone as long as anything waits for it."""

    stdin = None

    def __init__(self, events: list[float | None]) -> None:
        self.events = events
        """None for each process that is killed, and the seconds of each wait."""

    def kill(self) -> None:
        self.events.append(None)

    def wait(self, timeout: float = 60.0) -> None:
        self.events.append(timeout)
        time.sleep(timeout)
        raise subprocess.TimeoutExpired("rank", timeout)


def test_ranks_that_take_their_time_to_die_are_killed_all_at_once():
    """A driver that frees a GPU's memory delays the end: all are killed before any is waited for."""
    ranks = Ranks(2, "tests.engine.runner.failing_rank", b"silent\n")
    ranks.kill()
    events: list[float | None] = []
    ranks._processes = cast("Any", {rank: Lingering(events) for rank in range(1, 8)})
    ranks.kill()
    killed, waited = events[:7], [seconds for seconds in events[7:] if seconds is not None]
    assert killed == [None] * 7
    assert len(waited) == 7
    assert sum(waited) <= 0.5


class WaitingWorker:
    """A rank on a GPU: its launches return at once, and the device waits for a rank that will not come."""

    def __init__(self) -> None:
        self.never = threading.Event()
        self.ended = False

    def forward(self, plan: StepPlan) -> StepPlan:
        return plan

    def sample(self, forwarded: StepPlan, masks: Masks) -> StepPlan:
        assert not masks
        return forwarded

    def close(self) -> None:
        """Its thread hangs in `finish`, or nothing is left."""

    def finish(self, launched: StepPlan) -> None:
        self.never.wait(300)
        self.ended = True


def test_the_file_in_which_ranks_met_is_no_other_file_after_their_end():
    """PyTorch's store opens it again when it is destroyed, which may be when the interpreter ends."""
    ranks = Ranks(2, "tests.engine.runner.failing_rank", b"silent\n")
    ranks.kill()
    assert Path(ranks.rendezvous).readlink().name == "memfd:octavo-rendezvous (deleted)"


def test_a_device_that_waits_for_a_lost_rank_does_not_delay_the_error():
    """Three of the five seconds in which all must end may be over when a rank counts as stopped."""
    assert rank_processes._SILENCE + executor._LOST_SECONDS + rank_processes._KILLED_SECONDS < 4.5
    ranks, worker = Ranks(2, "tests.engine.runner.failing_rank", b"silent\n"), WaitingWorker()
    group = GroupExecutor(ThreadExecutor(cast("Any", worker), DeviceThread()), ranks)
    group.forward(StepPlan(0))
    group.sample()
    with pytest.raises(EngineDeadError, match="ended with exit code 7"):
        group.result()
    group.close()
    assert not worker.ended, "it was waited for"
    worker.never.set()


@pytest.fixture
def got(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file with what the rank was sent, after replacing real ranks by the poor one."""
    monkeypatch.setattr(start_engine, "RANK_MODULE", "tests.engine.runner.poor_rank")
    monkeypatch.setenv("POOR_RANK_GOT", str(tmp_path / "got"))
    return tmp_path / "got"


def start(model: Path, **settings: int | None) -> None:
    """Start an engine as far as it comes with a rank that computes nothing."""
    config = EngineConfig(model=str(model), device="cpu", tensor_parallel_size=2, **settings)
    start_engine.start_engine(config, lambda *_: None)


def test_the_rank_with_the_least_memory_decides_for_all(tiny_model, got):
    """The first one's device, this machine's memory, has more: the KV cache is what the other has room for."""
    with pytest.raises(EngineDeadError, match="rank 1 of 2: has seen enough"):
        start(tiny_model)
    plan = decode_memory_plan(got.read_bytes())
    # Nine tenths of all of it, less what others have, shared by two on a CPU.
    budget = int(0.9 * (poor_rank.TOTAL // 2)) - (poor_rank.TOTAL // 2 - poor_rank.FREE // 2)
    assert plan.budget == budget
    assert 0 < budget - plan.need.weights - plan.need.step - plan.kv_bytes < plan.need.kv_per_token * plan.block_size


def test_what_does_not_fit_on_another_rank_is_reported_before_it_is_loaded(tiny_model, got):
    with pytest.raises(DoesNotFitError, match="does not fit into a share of 1/2 of the device of rank 1: it needs"):
        start(tiny_model, num_kv_blocks=1 << 15)  # 128 MiB, for which this machine has room
    assert not got.exists()


def test_ranks_log_in_the_format_of_all(capfd):
    """An unforeseen error of a rank is logged with its traceback in one line of JSON."""
    config = EngineConfig(model="nowhere", device="cpu", tensor_parallel_size=2)
    ranks = Ranks(2, MODULE, encode_job(config, ModelFiles("test", directory=Path("nowhere")), "json"))
    try:
        ranks.send(b"no memory plan")
        with pytest.raises(EngineDeadError, match="rank 1 of 2: JSONDecodeError"):
            ranks.wait(Future())
    finally:
        ranks.kill()
    (line,) = map(json.loads, capfd.readouterr().err.splitlines())
    assert (line["level"], line["logger"], line["message"]) == ("error", "octavo.rank", "rank 1 died")
    assert "JSONDecodeError" in line["exception"]
