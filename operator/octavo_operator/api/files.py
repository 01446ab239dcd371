"""Reads LLMServices from files for `check`, `render` and `local`, and reports all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo_operator.api.manifest import ManifestError, objects_in, read
from octavo_operator.api.names import GROUP, KIND
from octavo_operator.api.resource import InvalidLLMServiceError, LLMService, parse


@dataclass
class Inspection:
    """The content of a file: its valid LLMServices, the problems of the others, and the kinds that were skipped."""

    services: list[LLMService] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def inspect(path: Path) -> Inspection:
    """Read and check one file; never raises for what is in it."""
    found = Inspection()
    try:
        documents = read(path)
    except OSError as error:
        found.problems.append(f"cannot be read: {error.strerror or error}")
        return found
    except ManifestError as error:
        found.problems.append(str(error))
        return found
    for document in documents:
        where = f"document {document.position}: " if len(documents) > 1 else ""
        objects = list(objects_in(document.content))
        for number, one in enumerate(objects, 1):
            _check(one, found, where + (f"item {number}: " if len(objects) > 1 else ""))
    if not found.services and not found.problems:
        found.problems.append(f"holds no {KIND}")
    return found


def _check(content: Mapping[str, Any], found: Inspection, prefix: str) -> None:
    kind, api_version = content.get("kind"), content.get("apiVersion")
    ours = str(api_version).startswith(f"{GROUP}/") or "llmservice" in str(kind).lower()
    if kind and api_version and not ours:
        found.skipped.append(f"{prefix}{kind} is no {KIND}")
        return
    try:
        found.services.append(parse(content))
    except InvalidLLMServiceError as error:
        found.problems.extend(f"{prefix}{problem}" for problem in error.problems)
