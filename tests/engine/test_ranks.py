"""The memory that ranks share, and how the first one learns what became of the others."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pytest

from octavo_engine.errors import DoesNotFitError, EngineDeadError
from octavo_engine.runner import board as board_module
from octavo_engine.runner.board import Board
from octavo_engine.runner.ranks import Ranks


def test_messages_arrive_whole_and_in_order_at_every_rank(monkeypatch):
    """Most of them run over the ring's end, and some are longer than all of it."""
    monkeypatch.setattr(board_module, "_RING", 4096)
    memory = Board.create(3)
    random_bytes = random.Random(1).randbytes
    messages = [random_bytes(length) for length in (0, 1, 4088, 4096, 20_000, *range(1, 3000, 7))]
    got: dict[int, list[bytes]] = {1: [], 2: []}

    def read(rank: int) -> None:
        view = Board(memory, 3)
        got[rank] = [view.receive(rank) for _ in messages]

    readers = [threading.Thread(target=read, args=(rank,)) for rank in got]
    for reader in readers:
        reader.start()
    writer = Board(memory, 3)
    for message in messages:
        writer.send(message, lambda: None)
    for reader in readers:
        reader.join(20)
    assert got[1] == got[2] == messages


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        (b"load\n", DoesNotFitError, "rank 1 of 2: does not fit: there are only 3 MiB"),
        (b"silent\n", EngineDeadError, "rank 1 of 2 ended with exit code 7"),
    ],
)
def test_what_a_rank_died_of_is_the_groups_error(job, error, words):
    ranks = Ranks(2, "tests.engine.failing_rank", job)
    try:
        with pytest.raises(error, match=words):
            ranks.wait(Future())  # which never ends
    finally:
        ranks.kill()
