"""Reads YAML files that are not trusted, and writes YAML deterministically.

The reader refuses what the API server's would refuse or what could harm the reader: duplicate keys, tags, endless or
exploding aliases, deep nesting, huge files. It keeps dates as strings, since Kubernetes knows JSON's types only.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

STANDARD_INPUT = Path("-")
MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_NODES = 50_000


class ManifestError(ValueError):
    """A file is not readable as Kubernetes YAML; the message says where and why."""


@dataclass(frozen=True)
class Document:
    """One YAML document: `position` counts from 1 within its file."""

    position: int
    content: dict[str, Any]


_AS_KUBECTL = (
    ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o?[0-7_]+)$", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("bool", r"[yYnN]$", "yYnN"),
)
"""Unquoted values that kubectl and Helm (go-yaml 2) read as numbers or booleans; PyYAML reads some as strings."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads numbers as kubectl does: no dates, no base-60 numbers; with unique string keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise ManifestError(f"line {line}: the key {key!r} is not a string; put it in quotes")
            if key in seen:
                raise ManifestError(f"line {line}: the key {key!r} appears twice in one mapping")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if not tag.endswith((":timestamp", ":int", ":value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}  # fmt: skip
_Loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes strings which kubectl would take for numbers, and writes no aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    for _tag, _expression, _first in _AS_KUBECTL:
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_expression), list(_first))


def dump(*documents: Any) -> str:
    """Return `documents` as YAML, keys in the order given, so that equal input gives equal bytes."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def read(path: Path) -> list[Document]:
    """Return the documents of the file, or of standard input for `-`; ManifestError or OSError if it cannot be read."""
    with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ManifestError(f"is larger than {MAX_BYTES >> 20} MiB, more than Kubernetes would store")
    return load(data)


def objects_in(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the object of a document, or those of a List, as `kubectl get -o yaml` writes it, one by one."""
    items = content.get("items")
    if str(content.get("kind", "")).endswith("List") and isinstance(items, list):
        yield from (item for item in items if isinstance(item, dict))
    else:
        yield content


def load(data: bytes) -> list[Document]:
    """Return the documents of `data`, empty ones left out; ManifestError says line and reason."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ManifestError("is not a text file in UTF-8") from None
    try:
        _refuse_bombs(text)
        return list(_documents(text))
    except ManifestError:
        raise
    except yaml.YAMLError as error:
        raise ManifestError(_explain(error)) from None
    except UnicodeEncodeError:
        raise ManifestError("holds an unpaired UTF-16 surrogate (\\ud800 to \\udfff)") from None
    except (ValueError, OverflowError) as error:
        raise ManifestError(f"holds a value that JSON cannot hold: {error}") from None


def _documents(text: str) -> Iterator[Document]:
    for position, content in enumerate(yaml.load_all(text, _Loader), 1):
        if content is None:
            continue
        if not isinstance(content, dict):
            raise ManifestError(f"document {position} is a {_kind_of(content)}, not a mapping with apiVersion and kind")
        json.dumps(
            content, allow_nan=False, ensure_ascii=False
        ).encode()  # what JSON cannot say, Kubernetes cannot store
        yield Document(position, content)


def _refuse_bombs(text: str) -> None:
    """Raise ManifestError if the text nests too deeply or its aliases stand for too much."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise ManifestError(f"line {_line(event)}: {tag} is a tag; Kubernetes YAML has none")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ManifestError(f"line {_line(event)}: the alias *{event.anchor} has no finished anchor")
            total += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - before
        if len(open_nodes) > MAX_DEPTH:
            raise ManifestError(f"line {_line(event)}: nested more than {MAX_DEPTH} levels deep")
        if total > MAX_NODES:
            raise ManifestError(f"holds more than {MAX_NODES} values, counting what its aliases stand for")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _explain(error: yaml.YAMLError) -> str:
    mark, begin = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if "cannot start any token" in problem and r"\t" in problem:
        problem = "a tab is used to indent; YAML wants spaces"
    elif mark and begin and problem.startswith("expected <block end>") and _begins_its_line(mark, begin):
        problem = (
            f"{mark.column} spaces before this, and {begin.column} before what it should belong to, on line"
            f" {begin.line + 1}: fields of one mapping, and items of one list, are indented alike"
        )
    elif begin and problem.startswith(("expected ',' or", "did not find expected ',' or")):
        problem = (
            f"the bracket that opens on line {begin.line + 1} is not closed, or a comma is missing before this place"
        )
    elif begin and problem == "found unexpected end of stream":
        problem = f"the quote that opens on line {begin.line + 1} is not closed"
    elif problem.startswith("mapping values are not allowed"):
        problem = "there is one ':' too many: put a value with ': ' in quotes, or indent as the lines above"
    elif problem.startswith("could not find expected ':'"):
        problem = "this is no 'field: value': a ':' or a space after it is missing, or the line above ends too early"
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


def _begins_its_line(mark: yaml.Mark, begin: yaml.Mark) -> bool:
    """Return True if only spaces, and not as many as before `begin`, are before the mark in its line."""
    before = mark.buffer[mark.pointer - mark.column : mark.pointer] if mark.buffer else None
    return before is not None and not before.strip(" ") and mark.column != begin.column


def _kind_of(content: Any) -> str:
    return {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}.get(type(content), "value")
