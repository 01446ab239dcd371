"""Adapter slots: running requests keep theirs, and no adapter waits forever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo_engine.engine.adapter_slots import _PATIENCE, AdapterSlots
from octavo_engine.model.lora.adapter import Adapter, AdapterWrite


class Store:
    """Every adapter is there, in three parts."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def get(self, digest: str) -> Adapter:
        def writes(slot: int) -> list[AdapterWrite]:
            return [AdapterWrite(slot, digest, "", (), first=part == 0, last=part == 2) for part in range(3)]

        return cast("Adapter", SimpleNamespace(digest=digest, writes=writes))

    def is_used(self, digest: str) -> bool:
        return digest in self.waiting


def make(count: int, *waiting: str) -> tuple[AdapterSlots, list[tuple[int, str]], Store]:
    written: list[tuple[int, str]] = []
    executor: Any = SimpleNamespace(write_adapter=lambda write: written.append((write.slot, write.digest)))
    store = Store()
    store.waiting |= {*waiting}
    return AdapterSlots(count, cast("Any", store), executor), written, store


def test_a_request_begins_when_all_parts_are_on_their_way() -> None:
    slots, written, _ = make(1, "a")
    slots.before_plan((), all_parts=False)
    ready = []
    for _ in range(5):
        ready.append(slots.is_ready("a"))
        slots.before_plan((), all_parts=False)
    assert ready == [False, False, False, True, True]
    assert written == [(0, "a")] * 3


def test_an_idle_device_gets_all_parts_at_once() -> None:
    slots, written, _ = make(1, "a")
    slots.before_plan((), all_parts=True)
    assert not slots.is_ready("a")
    slots.before_plan((), all_parts=True)
    assert len(written) == 3
    assert slots.is_ready("a")


def test_no_more_adapters_run_than_there_are_slots() -> None:
    slots, _, _ = make(2, "a", "b", "c")
    running: list[str] = []
    for _ in range(4):
        slots.before_plan(running, all_parts=True)
        running += [each for each in ("a", "b", "c") if each not in running and slots.is_ready(each)]
    assert running == ["a", "b"]
    slots.before_plan(["b"], all_parts=True)
    assert not slots.is_ready("c")
    slots.before_plan(["b"], all_parts=True)
    assert slots.is_ready("c")
    assert not slots.is_ready("a")


def test_a_slot_on_its_way_to_a_waiting_request_is_not_given_to_another() -> None:
    slots, _, store = make(1, "a", "b")
    for digest in ("a", "b", "b"):
        slots.before_plan((), all_parts=True)
        assert not slots.is_ready(digest)
    slots.before_plan((), all_parts=True)
    assert slots.is_ready("a")
    store.waiting.remove("a")
    slots.before_plan((), all_parts=True)
    assert not slots.is_ready("b")
    slots.before_plan((), all_parts=True)
    assert slots.is_ready("b")


def test_an_adapter_that_waits_for_a_slot_gets_one_in_the_end() -> None:
    """Requests for `a` never cease."""
    slots, _, _ = make(1, "a", "b")
    slots.before_plan((), all_parts=True)
    slots.is_ready("a")
    slots.before_plan((), all_parts=True)
    assert slots.is_ready("a")
    admitted = 0
    for _ in range(2 * _PATIENCE):
        slots.before_plan(["a"], all_parts=True)
        assert not slots.is_ready("b")
        admitted += slots.is_ready("a")
    assert admitted == pytest.approx(_PATIENCE, abs=2)
    slots.before_plan((), all_parts=True)  # they have ended
    assert not slots.is_ready("b")
    slots.before_plan((), all_parts=True)
    assert slots.is_ready("b")


def test_an_adapter_whose_requests_have_gone_holds_no_other_up() -> None:
    slots, _, _ = make(1, "a", "b")
    slots.before_plan((), all_parts=True)
    slots.is_ready("a")
    for _ in range(2 * _PATIENCE):
        slots.before_plan(["a"], all_parts=True)
        slots.is_ready("a")
        slots.is_ready("b")
    assert not slots.is_ready("a")
    slots.forget("b")
    assert slots.is_ready("a")


def test_an_adapter_that_has_just_got_its_slot_serves_all_of_its_requests() -> None:
    """Otherwise each change of a slot would be for one request, while others wait for slots all the time."""
    slots, _, _ = make(1, "a", "b", "c")
    slots.before_plan((), all_parts=True)
    slots.is_ready("a")
    slots.before_plan((), all_parts=True)
    assert slots.is_ready("a")
    for _ in range(2 * _PATIENCE):
        slots.before_plan(["a"], all_parts=True)
        assert not (slots.is_ready("b") or slots.is_ready("c"))
    slots.before_plan((), all_parts=True)
    assert not slots.is_ready("b")
    slots.before_plan((), all_parts=True)
    assert [slots.is_ready("b") for _ in range(3)] == [True] * 3
    for _ in range(_PATIENCE + 1):
        slots.before_plan(["b"], all_parts=True)
        assert not slots.is_ready("c")
    assert not slots.is_ready("b")
