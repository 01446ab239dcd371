"""The limits of CPU time and memory for one task of a text worker."""

from __future__ import annotations

import re

CPU_SECONDS = 5.0
"""CPU seconds of a task. A prompt of a million tokens takes about two."""
WALL_SECONDS = 30.0
"""Seconds after which a worker is killed that has not used up its CPU time: it hangs, or the machine is overloaded."""
LONG_BODY = 512 << 10
"""Bytes of a body above which a task may take long: a second, and most of HEADROOM."""
GRAMMAR_FIELDS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "format",
    "tools",
)  # fmt: skip
"""The fields of bodies, or of objects within them, that are made into grammars. A test compares them with the bodies'
classes. To check a grammar may take a quarter of a second."""
_GRAMMAR_FIELD = re.compile(b'"(?:%s)"' % "|".join(GRAMMAR_FIELDS).encode())
_ESCAPED_LETTERS = (b"\\u005", b"\\u006", b"\\u007")
"""How a letter is escaped in JSON that could hide the name of such a field."""
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


def may_take_long(body: bytes) -> bool:
    """Return True if the text work for this body may take far longer than that for most bodies: it has much text, or a
    grammar.

    Called on the event loop: it takes 0.05 ms for 64 KiB of words, and 6 ms for 512 KiB of the worst bytes.
    """
    if len(body) > LONG_BODY or _GRAMMAR_FIELD.search(body) is not None:
        return True
    return any(letters in body for letters in _ESCAPED_LETTERS)
