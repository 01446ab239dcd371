"""Narrows formats of JSON schemas to what a grammar can hold an answer to, so that all answers are valid under them.

llguidance allows a year 0000, a February 29th in every year, a second 60, any number of digits after the seconds, and
host names of any length, and it does not know the formats of references, templates, pointers and regular expressions.
Each such format is replaced by a pattern, a bound or another format that allows less; Python's datetime can read the
dates and times, and its `re` the regular expressions, whose groups are not nested.
Formats that JSON Schema does not define allow any value, as it says, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_YEAR = r"([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_LATER_DAYS = r"((0[13578]|1[02])-(29|30|31)|(0[469]|11)-(29|30))"
_DATE = rf"({_YEAR}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|{_LATER_DAYS})|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR_MINUTE})"

_ESCAPED = r"%[0-9a-fA-F]{2}"
_PATH_CHARACTER = rf"([a-zA-Z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_NO_COLON = rf"([a-zA-Z0-9._~!$&'()*+,;=@-]|{_ESCAPED})"
_LATER_PARTS = rf"(/{_PATH_CHARACTER}*)*"
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*:"
_HOST = r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,4})?"
_PATH = rf"({_SCHEME})?(//{_HOST}{_LATER_PARTS}|/({_PATH_CHARACTER}+{_LATER_PARTS})?)|{_NO_COLON}+{_LATER_PARTS}"
_REFERENCE = rf"({_PATH})?(\?({_PATH_CHARACTER}|[/?])*)?(#({_PATH_CHARACTER}|[/?])*)?"
_VARIABLE = rf"([a-zA-Z0-9_]|{_ESCAPED})+(:[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = rf"([!#$&(-;=?-\[\]_a-z~]|{_ESCAPED}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*"
_CLASS = r"\[\^?([a-zA-Z0-9_ ]|a-z|A-Z|0-9|\\[dswDSW\]\[.-])+\]"
_ATOM = rf"""([a-zA-Z0-9_ ,:;=@#%&'"<>~/!-]|\.|\\[dswDSW.*+?^$()\[\]{{}}|/\\]|{_CLASS})([*+?]|\{{[1-9][0-9]?,?\}})?"""
_GROUP = rf"\((\?:)?({_ATOM})+(\|({_ATOM})+)*\)[*+?]?"
_REGEX = rf"\^?({_ATOM}|{_GROUP})*(\|({_ATOM}|{_GROUP})+)*\$?"
_POINTER = r"(/([^/~]|~[01])*)*"
_HOST_NAME: Mapping[str, Any] = {"format": "hostname", "maxLength": 253}
_REPLACED: Mapping[str, Mapping[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "hostname": _HOST_NAME,
    "idn-hostname": _HOST_NAME,
    "idn-email": {"format": "email"},
    "iri": {"format": "uri"},
    "uri-reference": {"pattern": f"^{_REFERENCE}$"},
    "iri-reference": {"pattern": f"^{_REFERENCE}$"},
    "uri-template": {"pattern": f"^{_TEMPLATE}$"},
    "regex": {"pattern": f"^{_REGEX}$"},
    "json-pointer": {"pattern": f"^{_POINTER}$"},
    "relative-json-pointer": {"pattern": f"^(0|[1-9][0-9]{{0,8}})(#|{_POINTER})$"},
}
"""The keywords that replace each format. International names are held to their ASCII form."""
_KEPT = frozenset({"duration", "email", "ipv4", "ipv6", "uri", "uuid"})
"""The other formats that JSON Schema defines, all of which llguidance knows."""


def with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with a narrower format of its own; the schemas in it are left as they are."""
    kind = schema.get("format")
    if not isinstance(kind, str) or kind in _KEPT:
        return schema
    others = {key: value for key, value in schema.items() if key != "format"}
    exact = _REPLACED.get(kind, {})
    if not exact.keys() & others.keys():
        return {**others, **exact}
    all_of = others.get("allOf", [])
    return {**others, "allOf": [*all_of, exact]} if isinstance(all_of, list) else schema  # llguidance refuses it
