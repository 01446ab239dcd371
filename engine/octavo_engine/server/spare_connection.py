"""Which connection gives its place to a new one when all places are taken, so that no client can keep all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from octavo_engine.server.auth import key_of
from octavo_engine.server.connection import ClientConnection
from octavo_engine.server.serving import GENERATING


def spare_connection(connections: Collection[ClientConnection]) -> ClientConnection | None:
    """The one that has been idle for longest; None if all of them wait for answers that are being generated.

    If none is idle, it is one that sends a body, or reads what is stored, of the key with most connections: the one
    whose request is the oldest. Answers that are generated end in full: admission bounds how many there are.
    """
    if idle := [each for each in connections if each.idle]:
        return min(idle, key=lambda each: each.idle_since)
    owned = Counter(_owner(each) for each in connections)
    others = [each for each in connections if not _is_being_answered(each)]
    return min(others, key=lambda each: (-owned[_owner(each)], each.idle_since), default=None)


def _owner(connection: ClientConnection) -> str:
    return key_of(connection.scope).name


def _is_being_answered(connection: ClientConnection) -> bool:
    return connection.scope["path"] in GENERATING and not connection.cycle.more_body
