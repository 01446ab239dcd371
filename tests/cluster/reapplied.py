"""Dry-runs an apply of a child's manifest, as the operator would, and shows what it would change."""

from __future__ import annotations

import difflib
import json
from typing import Any

import yaml

from octavo_operator.api.names import GROUP
from octavo_operator.reconcile.fields.ownership import APPLIED
from octavo_operator.reconcile.kinds import BY_NAME
from tests.operator.bad_llmservices import merged

from .client import Client

_QUERY = {"fieldManager": "octavo-operator", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
_HEADERS = {"Content-Type": "application/apply-patch+yaml"}


def reapplied(client: Client, manifest: dict[str, Any]) -> list[str]:
    """Return the differences as lines; empty if there are none.

    The resource version says nothing here: a dry run leaves it as it was, whatever it would change.
    """
    path = BY_NAME[manifest["kind"]].path(client.namespace, manifest["metadata"]["name"])
    found = client.http.get(path)
    if found.status_code == 404:
        return [f"{manifest['kind']} {manifest['metadata']['name']} is missing"]
    live = found.raise_for_status().json()
    # The operator also writes the digest of what it applied, and when it had refused pods tried again.
    written = live["metadata"].get("annotations", {})
    notes = {name: written[name] for name in (APPLIED, f"{GROUP}/tried") if name in written}
    noted = merged(manifest, {"metadata": {"annotations": notes}})
    tried = client.http.patch(path, params=_QUERY, headers=_HEADERS, content=json.dumps(noted))
    if tried.is_error:  # as by a policy that was deleted a moment ago and still acts, or by a busy API server
        return [f"{manifest['kind']} {manifest['metadata']['name']} is refused: {tried.json().get('message')}"]
    texts = (yaml.safe_dump(_bare(each)).splitlines() for each in (live, tried.json()))
    return list(difflib.unified_diff(*texts, "in the cluster", "rendered", lineterm=""))


def _bare(manifest: dict[str, Any]) -> dict[str, Any]:
    """Without what the cluster itself writes meanwhile."""
    moving = ("managedFields", "resourceVersion")
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in moving}
    return {**{key: value for key, value in manifest.items() if key != "status"}, "metadata": metadata}
