"""Which connections give their places to new ones when all are taken, so that no client can keep all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from starlette.types import Scope

from octavo_engine.server.auth import key_of
from octavo_engine.server.connection import ClientConnection
from octavo_engine.server.serving import GENERATING

_PART = 64
"""Of so many connections one is closed at a time: to look through thousands for each new one would take too long."""


def spare_connections(connections: Sequence[ClientConnection]) -> list[ClientConnection]:
    """Those that have been idle for longest; none if all of them wait for answers that are being generated.

    If none is idle, they are those that send a body, or read what is stored, of the key with most connections: those
    whose requests are the oldest. Answers that are generated end in full: admission bounds how many there are.
    """
    owners = Counter[str]()
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
