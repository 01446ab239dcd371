"""The error with which a local run ends."""

from __future__ import annotations


class LocalError(Exception):
    """The engine could not be run here; `exit_code` is what the program should end with."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
