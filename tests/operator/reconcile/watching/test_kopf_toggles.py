"""kopf's toggles while it reads what exists: the work of a start grows with the number of objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kopf._cogs.aiokits import aiotoggles

from octavo_operator.reconcile.watching import watches


async def test_objects_that_wait_are_woken_once_all_are_indexed() -> None:
    """kopf's own set asks 40,000 times here: each of 200 objects again for each toggle that goes."""
    assert watches.kopf is not None, "its import lets kopf use our set"
    asked = 0

    def all_on(states: Iterable[bool]) -> bool:
        nonlocal asked
        asked += 1
        return all(states)

    toggles = aiotoggles.ToggleSet(all_on)
    made = [await toggles.make_toggle(name=str(number)) for number in range(200)]
    waiting = [asyncio.create_task(toggles.wait_for(True)) for _ in made]
    await asyncio.sleep(0)
    for toggle in made:
        assert not any(task.done() for task in waiting)
        await toggles.drop_toggle(toggle)
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*waiting), 120)
    assert asked < 2_000
