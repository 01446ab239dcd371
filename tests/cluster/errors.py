"""Errors that keep a cluster from starting; each message is a sentence for the user."""


class ClusterError(Exception):
    """The cluster cannot start or go on; the message says why and what to do.

    `exit_code` follows the convention of Octavo's programs: 1 something failed, 2 the machine lacks what is needed.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
