"""Waits for a condition to become true."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(
    predicate: Callable[[], Value | None],
    *,
    timeout: float,
    describe: str | Callable[[], str],
    every: float = 0.1,
) -> Value:
    """Call `predicate` every `every` seconds until it returns something true, and return that.

    After `timeout` seconds raises `TimeoutError` with `describe`: what was waited for, and, as a function, what was
    there instead. An exception of the predicate is not caught: it is no answer of "not yet".
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s still not: {describe() if callable(describe) else describe}")
        time.sleep(every)
