"""The input of a custom tool, read from the JSON of its call's arguments while that is written."""

from __future__ import annotations

import json
import re

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WRONG = r"\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])"
_OTHER = rf"[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F]|{_WRONG}"
"""What may follow half of a pair of surrogates instead of the other half."""
_COMPLETE = re.compile(
    rf'([^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}|{_WRONG}|{_HIGH}({_LOW}|(?={_OTHER})))*', re.DOTALL
)
"""The characters of a JSON string up to its end, or to an escape whose rest has not come."""
_ESCAPE = re.compile(r'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
"""An escape of JSON; or a backslash that is none, as in code that a model did not escape: it stands for itself."""


class CustomInput:
    """Decodes the text of `{"input": "..."}`, which comes in pieces."""

    def __init__(self) -> None:
        self._unread = ""
        self._begun = False

    def push(self, piece: str) -> str:
        """Return the text that the next piece of JSON adds; half a pair of surrogates becomes U+FFFD."""
        self._unread += piece
        if not self._begun:
            if (begin := _BEGIN.match(self._unread)) is None:
                return ""
            self._begun, self._unread = True, self._unread[begin.end() :]
        end = found.end() if (found := _COMPLETE.match(self._unread)) else 0
        written, self._unread = self._unread[:end], self._unread[end:]
        valid = _ESCAPE.sub(lambda found: found[1] or r"\\", written)
        text: str = json.loads(f'"{valid}"', strict=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
