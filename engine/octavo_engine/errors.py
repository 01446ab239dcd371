"""Errors, and the exit code that a process ends with for each.

Every error says, in one message a person can act on, what was needed, what there was and which knob to turn.
"""

from __future__ import annotations

_LONGEST_MESSAGE = 8_000
"""Characters. The longest of ours, which lists all architectures, has about half as many."""


class OctavoError(Exception):
    """Base of all errors that end in a message rather than in a traceback."""

    exit_code = 1


class ConfigurationError(OctavoError):
    """A flag, an environment variable or a configuration file says what cannot be (exit 2)."""

    exit_code = 2


class ModelLoadError(OctavoError):
    """The model is not there, or is not what it says it is (exit 3)."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        """`message` may quote what the files say: it is cut where it is very long, and kept printable on one line."""
        readable = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message[:_LONGEST_MESSAGE])
        super().__init__(readable + (" ..." if len(message) > _LONGEST_MESSAGE else ""))


class AdapterNotFoundError(ModelLoadError):
    """There is no adapter at the path that was given."""


class DoesNotFitError(OctavoError):
    """Weights, one step and a useful KV cache do not fit into memory together (exit 4)."""

    exit_code = 4


class EngineDeadError(OctavoError):
    """The engine process stalled or died (exit 5)."""

    exit_code = 5


class NotAdmissibleError(ValueError):
    """A request can never run as asked; the message says what would run. It ends that request alone."""


BY_EXIT_CODE = {kind.exit_code: kind for kind in (ConfigurationError, ModelLoadError, DoesNotFitError, EngineDeadError)}
"""The error class for the exit code of a process that has ended."""
