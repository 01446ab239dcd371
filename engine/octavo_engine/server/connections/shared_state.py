"""What all connections of one event loop share."""

from __future__ import annotations

from collections.abc import Callable

from octavo_engine.server.admission.pacer import Pacer
from octavo_engine.server.connections.read_pacer import ReadPacer
from octavo_engine.server.connections.unread_input import UnreadInput

_ENDED_AT_ONCE = 4
"""Requests that may learn in one iteration of the event loop that their clients have gone."""


class SharedState:
    """The limits that hold for all connections together."""

    def __init__(self, owner_of: Callable[[bytes], str]) -> None:
        """`owner_of` returns the name of the API key that a request's first bytes present."""
        self.owner_of = owner_of
        self.unread_input = UnreadInput()
        self.pacer = ReadPacer()
        self.ends = Pacer(_ENDED_AT_ONCE)
