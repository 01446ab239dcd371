"""The console scripts `octavo-operator` and `kubectl-octavo`. Ctrl-C prints no traceback, also while they start."""

from __future__ import annotations

from contextlib import suppress

_INTERRUPTED = 130


def operator() -> int:
    """Run `octavo-operator` and return its exit code."""
    with suppress(KeyboardInterrupt):
        from octavo_operator.cli import main

        return main()
    return _INTERRUPTED


def kubectl() -> int:
    """Run `kubectl octavo` and return its exit code."""
    with suppress(KeyboardInterrupt):
        from octavo_operator.kubectl.cli import main

        return main()
    return _INTERRUPTED
