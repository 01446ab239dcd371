"""What is remembered of LLMServices for as long as the process runs, also where the watches are opened again."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.status.deleted_pods import DeletedPods
from octavo_operator.reconcile.status.disruptions import Disruptions
from octavo_operator.reconcile.status.load_balancer import MissingAddresses
from octavo_operator.reconcile.status.unobserved import UnobservedChanges


@dataclass(frozen=True)
class Remembered:
    """What the objects of the API server do not tell: since when something lacks, and which pods are gone."""

    unobserved: UnobservedChanges = field(default_factory=UnobservedChanges)
    disruptions: Disruptions = field(default_factory=Disruptions)
    deleted: DeletedPods = field(default_factory=DeletedPods)
    addresses: MissingAddresses = field(default_factory=MissingAddresses)

    def forget(self, key: Key) -> None:
        """Forget an LLMService that is gone."""
        self.unobserved.forget(key)
        self.disruptions.forget(key)
        self.deleted.forget(key)
        self.addresses.forget(key)
