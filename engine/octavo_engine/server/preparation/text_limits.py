"""The limits of CPU time and memory for one task of a text worker."""

from __future__ import annotations

import re

CPU_SECONDS = 5.0
"""CPU seconds of a task. A prompt of a million tokens takes about two."""
WALL_SECONDS = 30.0
"""Seconds after which a worker is killed that has not used up its CPU time: it hangs, or the machine is overloaded."""
LARGE_BODY = 512 << 10
"""Bytes of a body above which a task is a large one: it may take a second and most of HEADROOM."""
_ASKS_FOR_A_GRAMMAR = re.compile(
    rb'"(guided_[a-z]+|structured_outputs|response_format|format|output_format|tools|functions)"\s*:'
    rb"|\\u00(5f|6[1-9a-f]|7[0-9a])",
    re.IGNORECASE,
)
"""A field that may be made into a grammar; or a letter that is escaped, which could hide the name of one."""
HEADROOM = 112 << 20
"""Bytes of memory for a task, beyond the process with its loaded tokenizer, and beyond `TOKEN_BYTES` for each token. A
body of 8 MB with valid lists of token ids takes about 60 MiB, one with 2,048 texts about 90."""
KEPT_MEMORY = 32 << 20
"""Bytes of free memory that a worker may keep after a task; from more it returns all of them to the kernel."""
TOKEN_BYTES = 640
"""Bytes that the tokenizer takes for a token with its text; the limit counts as many tokens as the model's context has.
Measured: 450 for digits, 640 for words."""
STACK = 8 << 20
"""Bytes of the stack. A schema or grammar whose nesting a worker can handle is no risk for the engine's grammar thread,
whose stack is 32 times as large."""
MAX_REQUEST = 16 << 20
"""Bytes of a prepared request with a copy of its sampling parameters for each answer, as the engine receives them."""
MAX_PARAMETERS = 2 << 20
"""Bytes of the sampling parameters of a request with several answers: the engine decodes them between two steps."""
MAX_RESULT = 16 << 20
"""Bytes of a result."""
NICENESS = 5
"""The workers' nice value: on a busy CPU the engine's steps, for which all clients wait, come before prompts."""


def is_large(body: bytes) -> bool:
    """Return True if a task with this body may take seconds of CPU time.

    To check a grammar may: 18 KB with 300 patterns of names took 5 s, while texts of that size take milliseconds.
    """
    return len(body) > LARGE_BODY or _ASKS_FOR_A_GRAMMAR.search(body) is not None
