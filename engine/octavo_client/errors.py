"""Errors that end a command with a message instead of a traceback, and the exit code of each."""

from __future__ import annotations


class ClientError(Exception):
    """The server gave no usable answer, or refused the request."""

    exit_code = 1


class UsageError(ClientError):
    """A flag has a value that cannot be used (exit code 2)."""

    exit_code = 2


class BrokenStreamError(ClientError):
    """The server's stream is not what OpenAI's API describes."""
