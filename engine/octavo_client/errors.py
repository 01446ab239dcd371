"""Errors that end a command with a message instead of a traceback, and the exit code of each."""

from __future__ import annotations


class ClientError(Exception):
    """Raised if the server gave no usable answer, or refused the request."""

    exit_code = 1


class UsageError(ClientError):
    """Raised if a flag has a value that cannot be used (exit code 2)."""

    exit_code = 2


class BrokenStreamError(ClientError):
    """Raised if the server's stream is not as OpenAI's API describes it."""
