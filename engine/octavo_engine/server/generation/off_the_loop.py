"""Writes outputs, in a thread if that would block the event loop noticeably."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from octavo_engine.server.generation.sequence import SequenceOutput

Written = TypeVar("Written")
Arguments = ParamSpec("Arguments")
_LARGE_WORK = 2000
"""The amount of work (`work_of`) from which outputs are written in a thread, as it takes about 10 ms."""


async def off_the_loop_if_large(
    work: int, write: Callable[Arguments, Written], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Written:
    """Return the result of `write`, called in a thread if so much work would block the event loop noticeably."""
    if work < _LARGE_WORK:
        return write(*args, **kwargs)
    return await asyncio.to_thread(write, *args, **kwargs)


def work_of(output: SequenceOutput) -> int:
    """Return the amount of work to write an output, in units of one number or 64 characters."""
    work = 1 + len(output.text) // 64 + len(output.pooled) // 4
    if output.logprobs or output.prompt_logprobs:
        work += sum(1 + len(each.top) for each in (*output.logprobs, *(output.prompt_logprobs or ())))
    return work
