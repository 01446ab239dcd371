"""What the operator watches, and where changes of it go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.observation.observe import Index, Key
from octavo_operator.reconcile.queue import WorkQueue


@dataclass(frozen=True)
class Watched:
    """The namespaces of each kind that can be read ("": the whole cluster), the indexes of what the watches have
    reported of them, by plural, and the queue of the LLMServices to look at.
    """

    namespaces: Mapping[Kind, Sequence[str]]
    indexes: Mapping[str, Index]
    queue: WorkQueue[Key]
