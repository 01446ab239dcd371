"""A progress bar from 0 to 100 % for a command that waits for files or weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def percent_bar(title: str) -> Iterator[Callable[[str, float, str], None]]:
    """Shows what is reported as (phase, ratio 0 to 1, detail), on a terminal only; gone when it is done."""
    with tqdm(total=100, unit="%", desc=title, leave=False, disable=None) as bar:

        def report(_phase: str, ratio: float, detail: str) -> None:
            bar.set_postfix_str(detail, refresh=False)
            bar.update(int(ratio * 100) - bar.n)

        yield report
