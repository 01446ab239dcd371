"""Names and limits of LoRA adapters, and the values of `--lora-modules`."""

from __future__ import annotations

import json

from octavo_engine.errors import ConfigurationError

MAX_ADAPTERS = 1024
"""The largest number of adapters that a server may list as models; `--max-cpu-loras` bounds how many are in memory."""
ADAPTERS_READ_AT_ONCE = 2
"""Adapters that are fetched and read at once for clients that load them."""
_LONGEST_ADAPTER_NAME = 256


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
