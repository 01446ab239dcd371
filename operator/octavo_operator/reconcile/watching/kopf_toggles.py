"""Lets kopf read what exists in a time that grows with the number of objects, and not with its square.

While kopf reads what exists, each object has a toggle in one set, and waits until all toggles are gone. kopf 1.45 wakes
everything that waits each time that a toggle comes or goes: with 1,000 LLMServices and their children a new leader took
50 s. The set here wakes them when it is turned on or off as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from kopf._cogs.aiokits import aiotoggles


class ToggleSet(aiotoggles.ToggleSet):
    """kopf's set of toggles, which notifies only if its own state changes."""

    async def make_toggle(self, value: bool = False, /, *, name: str | None = None) -> aiotoggles.Toggle:
        """Add a toggle, and return it."""
        toggle = aiotoggles.Toggle(value, name=name, condition=self._condition)
        async with self._change():
            self._toggles.add(toggle)
        return toggle

    async def drop_toggle(self, toggle: aiotoggles.Toggle) -> None:
        """Remove a toggle."""
        await self.drop_toggles((toggle,))

    async def drop_toggles(self, toggles: Iterable[aiotoggles.Toggle]) -> None:
        """Remove several toggles."""
        async with self._change():
            self._toggles.difference_update(toggles)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        async with self._condition:
            before = self.is_on()
            yield
            if self.is_on() != before:
                self._condition.notify_all()


def use_in_kopf() -> None:
    """Let kopf make such sets from now on; it has no setting for it."""
    module: Any = aiotoggles
    module.ToggleSet = ToggleSet
