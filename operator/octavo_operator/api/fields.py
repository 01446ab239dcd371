"""Field types shared by the parts of a spec, each with its bounds and the message for a value outside of them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from octavo_operator.api.names import DNS_LABEL
from octavo_operator.api.schema import Rule, all_keys, pattern

Dns1123Name = Annotated[
    str,
    Field(min_length=1, max_length=253),
    pattern(
        rf"{DNS_LABEL}(\.{DNS_LABEL})*", "must be a Kubernetes object name: lower case letters, digits, '-' and '.'"
    ),
]
ObjectKey = Annotated[
    str,
    Field(min_length=1, max_length=253),
    pattern("[-._a-zA-Z0-9]+", "must be a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.'"),
]
ShortName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    pattern(
        DNS_LABEL,
        "must be a short name: lower case letters, digits and '-', starting and ending with a letter or digit",
    ),
]
ModelName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    pattern("[A-Za-z0-9][A-Za-z0-9._:/-]*", "must be a model name: letters, digits, '.', '_', ':', '/' and '-'"),
]
ImageReference = Annotated[
    str,
    Field(min_length=1, max_length=512),
    pattern(
        "[a-z0-9][A-Za-z0-9._:/@-]*", "must be an image reference such as registry.example/octavo:1.0 or ...@sha256:..."
    ),
]
HttpUrl = Annotated[
    str,
    Field(max_length=1024),
    pattern("https?://[A-Za-z0-9.:_-]+(/[A-Za-z0-9._~/-]*)?", "must be a URL such as https://hub.example"),
]
_NO_PARENT = Rule(
    "!self.split('/').exists(part, part == '..')",
    "must stay inside the volume: '..' is not allowed",
    lambda path: ".." not in path.split("/"),
)
VolumePath = Annotated[
    str,
    Field(max_length=512),
    pattern("[A-Za-z0-9._/-]*", "must be a path of letters, digits, '.', '_', '-' and '/'"),
    _NO_PARENT,
]
_SYSTEM_FOLDERS = (
    "/(bin|boot|dev|etc|lib|lib32|lib64|libx32|proc|root|run|sbin|sys|usr|var/(run|lock|log|spool|cache|backups|mail)"
    "|var/lib/(containerd|containers|cni|docker|dpkg|etcd|kubelet|rancher|rpm|systemd))(/.*)?"
)
NodeFolder = Annotated[
    str,
    Field(max_length=512),
    pattern(
        "(/[A-Za-z0-9._-]+){2,}/?",
        "must be an absolute path of two folders or more, such as /var/lib/octavo: letters, digits, '.', '_', '-'",
    ),
    Rule(
        "!self.split('/').exists(part, part == '.' || part == '..')",
        "must not contain a folder '.' or '..'",
        lambda path: not {".", ".."} & set(path.split("/")),
    ),
    Rule(
        f"!self.matches(r'^{_SYSTEM_FOLDERS}$')",
        "must not be a folder of the node's own system such as /etc, /usr or /var/lib/kubelet",
        lambda path: re.fullmatch(_SYSTEM_FOLDERS, path) is None,
    ),
]
Duration = Annotated[
    str,
    Field(min_length=2, max_length=16),
    pattern("([0-9]+h)?([0-9]+m)?([0-9]+s)?", "must be a duration such as 15s, 30m or 2h"),
    Rule("self.matches('[1-9]')", "must be longer than 0", lambda text: re.search("[1-9]", text) is not None),
]
_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(duration: str) -> int:
    """Return the length of a `Duration`."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([hms])", duration))


QUALIFIED = f"({DNS_LABEL}(\\.{DNS_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_QUALIFIED_SENTENCE = "must be a label's key such as pool or example.com/pool"
QualifiedName = Annotated[str, Field(min_length=1, max_length=317), pattern(QUALIFIED, _QUALIFIED_SENTENCE)]
_QUALIFIED_KEYS = all_keys(QUALIFIED, f"each key {_QUALIFIED_SENTENCE}")
LabelValue = Annotated[
    str,
    Field(max_length=63),
    pattern(
        "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", "must be a label's value: letters, digits, '-', '_' and '.'"
    ),
]
AnnotationMap = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64), _QUALIFIED_KEYS]
LabelMap = Annotated[dict[str, LabelValue], Field(max_length=64), _QUALIFIED_KEYS]
FreeForm = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""A part of another API, passed through unchanged; the API server validates it when it is applied."""
