"""Chooses which connections are closed for new ones when all are in use, so that no client can keep all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from starlette.types import Scope

from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.paths import GENERATING
from octavo_engine.server.connections.connection import ClientConnection

_PART = 64
"""One of this many connections is closed at a time: a search through thousands for each new one would take too long."""


def spare_connections(connections: Sequence[ClientConnection]) -> list[ClientConnection]:
    """Return the connections that have been idle for longest; none if all wait for answers that are being generated.

    If no connection is idle, they are connections that send a body or read something stored: those of the key with most
    connections, the oldest requests first. Generated answers are never cut off, as admission limits their number.
    Connections that have just been opened are not closed either, as their first request is about to be read.
    """
    owners = Counter[str]()
    connections = [each for each in connections if each.has_been_read]
    spare = [each for each in connections if each.idle]
    if not spare:
        owners = Counter(map(_owner, connections))
        spare = [each for each in connections if not _is_being_answered(each)]
    spare.sort(key=lambda each: (-owners[_owner(each)] if owners else 0, each.idle_since))
    return spare[: max(1, len(connections) // _PART)]


def _owner(connection: ClientConnection) -> str:
    return key_of(cast(Scope, connection.scope)).name


def _is_being_answered(connection: ClientConnection) -> bool:
    return connection.scope["path"] in GENERATING and not connection.cycle.more_body
