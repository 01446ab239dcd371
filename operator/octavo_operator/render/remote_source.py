"""What fetching a model and fetching adapters have in common: the source's name, its Secrets, and limits of a cache."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.source import ModelSource
from octavo_operator.render.volumes import CACHE, HOME, Mount

S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
S3_TOKEN = "AWS_SESSION_TOKEN"  # noqa: S105 - a variable's name
"""Optional: only temporary credentials have it."""
_WRITTEN = ("/tmp", HOME, CACHE)  # noqa: S108 - a path in the container


def remote_name(source: ModelSource) -> str | None:
    """Return the argument by which `octavo-engine pull` fetches a source; None if it is not fetched."""
    if source.s3 is not None:
        return f"s3://{source.s3.bucket}/{source.s3.prefix.strip('/')}".rstrip("/")
    return source.hugging_face.repository if source.hugging_face else None


def max_size_flag(spec: LLMServiceSpec) -> list[str]:
    """Return the flag that limits a download to the size of an ephemeral cache: a pod that exceeds it is evicted."""
    limit = spec.cache.size if spec.cache.type == "Ephemeral" else None
    return [f"--max-size={int(parse_quantity(limit))}"] if limit else []


def written_mounts(mounts: Sequence[Mount]) -> list[Mount]:
    """Return the mounts of the engine's container that a container which fetches something writes to."""
    return [mount for mount in mounts if mount.path in _WRITTEN]
