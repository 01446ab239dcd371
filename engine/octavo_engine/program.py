"""The console script `octavo-engine`."""

from __future__ import annotations

from contextlib import suppress

_INTERRUPTED = 130


def main() -> int:
    """Run `octavo-engine` and return its exit code; Ctrl-C while its modules are imported prints no traceback."""
    with suppress(KeyboardInterrupt):
        from octavo_engine.cli import main as run

        return run()
    return _INTERRUPTED
