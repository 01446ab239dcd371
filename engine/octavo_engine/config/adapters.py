"""Names, sources and limits of LoRA adapters, and the values of `--lora-modules` and `--lora-sources`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from octavo_engine.errors import ConfigurationError

MAX_ADAPTERS = 1024
"""The largest number of adapters that a server may list as models; `--max-cpu-loras` bounds how many are in memory."""
ADAPTERS_READ_AT_ONCE = 2
"""Adapters that are fetched and read at once for clients that load them."""
_LONGEST_ADAPTER_NAME = 256
_SOURCE = re.compile(r"/.*|s3://[^/]+(/.*)?|[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
"""The values of --lora-sources: an absolute folder, a prefix in S3, an owner or an id at Hugging Face."""


def parse_adapter(text: str) -> tuple[str, str]:
    """Return the name and the path in one value of --lora-modules, which is NAME=PATH or vLLM's JSON.

    ConfigurationError if it is neither.
    """
    name, _, path = text.partition("=")
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(text)
            name, path = values.get("name", ""), values.get("path", "")
        except (ValueError, RecursionError):
            raise ConfigurationError(f"--lora-modules: {text[:100]!r} is not valid JSON") from None
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ConfigurationError(
            f"--lora-modules: {text[:100]!r} is neither NAME=PATH nor JSON with name and path, such as "
            f'{{"name": "sql", "path": "/adapters/sql"}}'
        )
    try:
        check_adapter_name(name)
    except ValueError as error:
        raise ConfigurationError(f"--lora-modules: the name {name[:100]!r} {error}") from None
    return name, path


def check_adapter_name(name: str) -> str:
    """Return the name of an adapter; ValueError if it could not be written in logs, lists and labels of metrics."""
    if not name.isprintable() or "," in name or any(map(str.isspace, name)) or len(name) > _LONGEST_ADAPTER_NAME:
        raise ValueError(
            f"has to be of at most {_LONGEST_ADAPTER_NAME} printable characters, without spaces and commas"
        )
    return name


def check_sources(sources: Sequence[str]) -> None:
    """Raise ConfigurationError if a value of --lora-sources is none."""
    for source in sources:
        if not _SOURCE.fullmatch(source):
            raise ConfigurationError(
                f"--lora-sources: {source[:100]!r} is no absolute folder, no s3://bucket/prefix, and no owner or id at "
                "Hugging Face, such as /adapters, s3://models/adapters, my-company or my-company/sql"
            )


def is_allowed_source(path: str, sources: Sequence[str]) -> bool:
    """Return True if an adapter's `path` is one of `sources` or lies below one. A folder is where its links lead.

    It reads the file system, which may take long.
    """
    if path.startswith("s3://"):
        return ".." not in path.split("/") and any(_is_below(path, each) for each in sources)
    try:
        folder = Path(path).expanduser()
        if folder.exists() or folder.is_absolute():
            real = folder.resolve()
            return any(real.is_relative_to(Path(each).resolve()) for each in sources if each.startswith("/"))
    except (OSError, RuntimeError, ValueError):  # it is too long, has a NUL, is a circle of links, or cannot be read
        return False
    return any(_is_below(path, each) for each in sources)


def _is_below(path: str, source: str) -> bool:
    return path == source or path.startswith(f"{source.rstrip('/')}/")
