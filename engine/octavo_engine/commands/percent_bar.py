"""A progress bar from 0 to 100 % for a command that waits for files or weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def percent_bar(title: str) -> Iterator[Callable[[str, float, str], None]]:
    """Yield a function that shows progress, given as (phase, ratio from 0 to 1, detail), as a bar on a terminal.

    Nothing is shown where standard error is no terminal. The bar is removed at the end.
    """
    with tqdm(total=100, unit="%", desc=title, leave=False, disable=None) as bar:

        def report(_phase: str, ratio: float, detail: str) -> None:
            bar.set_postfix_str(detail, refresh=False)
            bar.update(int(ratio * 100) - bar.n)

        yield report
