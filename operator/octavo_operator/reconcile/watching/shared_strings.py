"""Strings that many objects have are kept once: each event of a watch is decoded by itself, with copies of its own.

With 1,000 LLMServices the objects that are kept took 43 MiB, of which a third was such copies.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_HAS_DIGIT = re.compile("[0-9]").search


def shared(value: Any) -> Any:
    """Return a copy of a decoded JSON value whose fields' names, and strings without digits, are interned.

    Times, addresses, uids and versions have digits: there is always another one, and Python 3.12 never forgets an
    interned string. managedFields, the longest part of most objects, stay as they are, since no watch keeps them.
    """
    if isinstance(value, str):
        return value if _HAS_DIGIT(value) else sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(name): each if name == "managedFields" else shared(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shared(each) for each in value]
    return value
