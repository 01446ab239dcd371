"""The callback to which fetching and loading a model report their progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, str], None]
"""Called with phase (`pulling`, `loading`), ratio 0 to 1 within the phase, and a detail such as `1.2 of 16.1 GiB`."""
