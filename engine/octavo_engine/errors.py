"""Errors, and the exit code that a process ends with for each.

Every error says, in one message a person can act on, what was needed, what there was and which knob to turn.
"""

from __future__ import annotations

_LONGEST_MESSAGE = 8_000
"""Characters that a message is cut to. Octavo's longest, which lists all architectures, has about half as many."""


class OctavoError(Exception):
    """Base of all errors that end in a message rather than in a traceback."""

    exit_code = 1


class ConfigurationError(OctavoError):
    """A flag, an environment variable or a configuration file has a value that is not valid (exit 2)."""

    exit_code = 2


class ModelLoadError(OctavoError):
    """The model is not found, or its files cannot be loaded (exit 3)."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        """Cut a very long `message` and escape its unprintable characters, since it may quote the model's files."""
        readable = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message[:_LONGEST_MESSAGE])
        super().__init__(readable + (" ..." if len(message) > _LONGEST_MESSAGE else ""))


class AdapterNotFoundError(ModelLoadError):
    """No adapter is found at the given path."""


class DoesNotFitError(OctavoError):
    """Weights, one step and a useful KV cache do not fit into memory together (exit 4)."""

    exit_code = 4


class EngineDeadError(OctavoError):
    """The engine process stalled or died (exit 5)."""

    exit_code = 5


class NotAdmissibleError(ValueError):
    """A request can never run with these parameters; the message says which would do. Only this request fails."""


FORBIDDEN = (
    "no token is left: the grammar, allowed_token_ids, bad_words and min_tokens, which forbids the stop tokens at "
    "first, together forbid all; leave one of them out"
)
"""Why an answer cannot go on if the fields of its request leave it no token."""
BY_EXIT_CODE = {kind.exit_code: kind for kind in (ConfigurationError, ModelLoadError, DoesNotFitError, EngineDeadError)}
"""The error class for the exit code of a process that has ended."""
