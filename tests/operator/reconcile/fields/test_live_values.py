"""A contested field keeps its live value while the rest of an object is applied."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.reconcile.apply.field_conflicts import Path
from octavo_operator.reconcile.fields.live_values import with_live_values
from tests.operator.bad_llmservices import GONE, merged

ENGINE = {"name": "engine", "image": "a", "args": ["x", "y"]}
SIDECAR = {"name": "a-sidecar", "image": "theirs"}


def manifest(engine: dict[str, Any] | None = None, before: tuple[Any, ...] = (), **spec: Any) -> dict[str, Any]:
    containers = [*before, merged(ENGINE, engine or {})]
    return {"spec": merged({"replicas": 1, "labels": {"a": "b"}, "containers": containers}, spec)}


def live(engine: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return the object as others have made it: with a container and a field of theirs."""
    return manifest(engine, (SIDECAR,), theirs=1, **spec)


CASES: list[tuple[str, dict[str, Any], Path]] = [
    ("a value", {"replicas": 7}, ("spec", "replicas")),
    ("one that is gone", {"replicas": GONE}, ("spec", "replicas")),
    ("a key of a mapping", {"labels": {"a": "c"}}, ("spec", "labels", "a")),
    ("a container, found by its name", {"engine": {"image": "b"}}, ("spec", "containers", 1, "image")),
    ("an item of a list", {"engine": {"args": ["x", "z"]}}, ("spec", "containers", 1, "args", 1)),
    ("a list as a whole", {"engine": {"args": ["x"]}}, ("spec", "containers", 1, "args")),
]


@pytest.mark.parametrize(("change", "path"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_one_field_is_as_they_want_it_and_no_other(change: dict[str, Any], path: Path) -> None:
    ours = manifest()
    assert with_live_values(ours, live(**change), [path]) == manifest(**change)
    assert ours == manifest()


@pytest.mark.parametrize("path", [(), ("spec", "containers", 0, "image"), ("spec", "missing", "deep")])
def test_without_our_fields_there_is_nothing_to_yield(path: Path) -> None:
    assert with_live_values(manifest(), live(), [path]) is None
