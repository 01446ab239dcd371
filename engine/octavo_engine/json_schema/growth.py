"""Limits the characters that rewriting adds to a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

MOST_CHARACTERS = 1 << 20
"""The most characters of all that is added to one schema. A format takes up to 800 and a list of multiples 4,000:
260 KB with 4,000 such lists became 15 MB, which took a text worker 4 s."""


class Growth:
    """Counts what schemas within one whole schema have after changes, and had not before."""

    def __init__(self) -> None:
        self._left = MOST_CHARACTERS

    def counted(self, change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        """Return a function that does the same, and raises ValueError once too many characters were added."""

        def changed(schema: dict[str, Any]) -> Any:
            new = change(schema)
            if isinstance(new, Mapping):
                added = {key: value for key, value in new.items() if value is not schema.get(key)}
                replaced = {key: schema[key] for key in added if key in schema}
                self._left -= len(json.dumps(added)) - len(json.dumps(replaced)) if added else 0
            if self._left < 0:
                raise ValueError(
                    "the schema is too large: what its formats, patterns, multiples and `not` stand for has more than "
                    f"{MOST_CHARACTERS} characters"
                )
            return new

        return changed
