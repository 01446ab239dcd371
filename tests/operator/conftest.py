"""Fixtures of the operator's tests."""

from __future__ import annotations

import pytest

from octavo_operator.reconcile import reconciler as reconciler_module
from octavo_operator.reconcile.apply.field_conflicts import FieldConflicts
from tests.operator.api_server import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reconciler_module, "FieldConflicts", lambda: FieldConflicts(clock))
    return clock
