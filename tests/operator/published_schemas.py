"""Kubernetes' published schemas, each file of which is read once: there are megabytes of them for every object."""

from __future__ import annotations

import functools
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

utils.schema_contents = functools.cache(utils.schema_contents)


def validate(manifest: dict[str, Any], minor: str) -> None:
    """Raise ValidationError unless this minor of Kubernetes has all fields of `manifest`, and takes their values."""
    kubernetes_validate.validate(manifest, minor, strict=True)
