"""The chart's guard covers every field of the CRD by which a pod reaches objects beyond the user's own model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.quick_yaml import load

CHECKOUT = Path(__file__).parents[3]
GUARD = (CHECKOUT / "charts/octavo/templates/guard.yaml").read_text()
ASK_FOR_NOTHING = {"autoscaling", "disruption", "monitoring", "networkPolicy", "replicas", "rollout", "suspend"}
"""Sections of the spec that name nothing of the namespace and change nothing in a pod."""


def spec() -> dict[str, Any]:
    crd = load((CHECKOUT / "manifests/crd.yaml").read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def names(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the names of all fields below a schema."""
    for name, field in schema.get("properties", {}).items():
        yield name
        yield from names(field)
    if "items" in schema:
        yield from names(schema["items"])


def test_every_section_of_the_spec_is_judged_or_asks_for_nothing() -> None:
    listed = re.search(r"\$sections := list (.*?) }}", GUARD)
    assert listed is not None
    sections = set(re.findall(r'"(\w+)"', listed[1]))
    assert sections | ASK_FOR_NOTHING == set(spec()["properties"])
    assert not sections & ASK_FOR_NOTHING


def test_every_field_that_names_a_secret_a_config_map_or_a_host_path_is_judged() -> None:
    reaching = {
        name for name in names(spec()) if re.search(r"(Secrets?|ConfigMap|SecretKey)?(Ref|Secrets)$|^hostPath$", name)
    }
    assert {"tokenSecretRef", "apiKeysSecretRef", "secretKeyRef", "configMapKeyRef", "hostPath"} <= reaching
    own_fields = {"fieldRef"}  # of the pod itself
    assert {name for name in reaching if name not in GUARD} == own_fields
