"""Reading of YAML files that users write: every mistake in one is a ConfigurationError of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from octavo_engine.errors import ConfigurationError

MAX_BYTES = 16 << 20


def load_yaml(path: Path, what: str) -> Any:
    """Return the content of the YAML file at `path`.

    `what` names the file in error messages, which quote nothing of its content, since it may hold secrets.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{what} {path} has more than {MAX_BYTES} bytes")
    try:
        return yaml.safe_load(content.decode())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f": see line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigurationError(f"{what} {path} is not valid YAML{where}") from None
    except Exception as error:  # noqa: BLE001  (YAML's constructors raise any error of int() and date() for bad values)
        message = f"{what} {path} is not valid YAML: a value in it cannot be read ({type(error).__name__})"
        raise ConfigurationError(message) from None
