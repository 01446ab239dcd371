"""Notices that the API server's history has gone back, as after etcd was restored from an older snapshot.

Everything that was seen before may then never have happened, and a watch that goes on from a version that is still to
come reports nothing until that version is reached again.
"""

from __future__ import annotations

from octavo_operator.reconcile.kinds import Kind


class HistoryLostError(Exception):
    """The API server lists an older state than before, as after a restore of etcd: the operator has to restart."""


class History:
    """The newest version of each kind's lists. They are read by quorum: no list is older than what was known when it
    was asked for. Of lists that are asked for at the same time, as of several namespaces, the older may arrive later.
    """

    def __init__(self) -> None:
        self._newest: dict[Kind, int] = {}

    def newest(self, kind: Kind) -> int:
        """Return the newest version of the kind's lists so far; 0: there was none."""
        return self._newest.get(kind, 0)

    def note(self, kind: Kind, version: str, before: int) -> None:
        """Take note of the resourceVersion of a list; HistoryLostError if it is smaller than `before`, the newest one
        when the list was asked for.

        A version that is no number, as a proxy's answer may have, says nothing about the order.
        """
        if not version.isdecimal():
            return
        now = int(version)
        if now < before:
            lists = f"the API server's lists of {kind.plural}"
            raise HistoryLostError(f"{lists} have version {now}, and had {before} before, as after a restore of etcd")
        self._newest[kind] = max(now, self.newest(kind))
