"""The figures of `make hostile`, which decide whether an attack missed a target."""

from __future__ import annotations

import asyncio

import pytest

from bench.hostile.several_keys import KEYS, by_several_keys
from bench.hostile.wire import Target


async def test_the_slowest_answer_to_an_attack_by_several_keys_is_recorded() -> None:
    async def attack(target: Target) -> None:
        target.slowest, target.outcomes["200"] = float(target.keys), 1
        await asyncio.Event().wait()

    target = Target(1, "sk-rude", 0.0, slowest=0.5)
    running = asyncio.create_task(by_several_keys(attack)(target))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (target.slowest, target.keys, target.outcomes) == (KEYS, 1, {"200": 1})
