"""CPU time and memory that one task of a text worker may use."""

from __future__ import annotations

CPU_SECONDS = 5.0
"""A prompt of a million tokens takes about two."""
WALL_SECONDS = 30.0
"""The time after which a worker is killed although it has not used its CPU time: it hangs, or the machine is
overloaded."""
HEADROOM = 256 << 20
"""Bytes of memory beside what the process has after loading its tokenizer, and beside `TOKEN_BYTES` for each token."""
TOKEN_BYTES = 192
"""Bytes that the tokenizer takes for a token, counted for as many as the model's longest sequence may have."""
STACK = 8 << 20
"""Bytes of the stack. A grammar or a schema nested so deep that a worker takes it is far from what the engine's thread
for grammars can take, which has 32 times as much."""
MAX_REQUEST = 16 << 20
"""Bytes of a prepared request with a copy of its parameters for each answer, as the engine gets them."""
MAX_PARAMETERS = 2 << 20
"""Bytes of these parameters, of a request with several answers: the engine reads them between two steps."""
MAX_RESULT = 16 << 20
"""Bytes of a result."""
NICENESS = 5
"""The engine's steps, on which all clients wait, come before prompts on a CPU that both want."""
