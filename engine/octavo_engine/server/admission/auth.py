"""API keys, from a YAML file or from a folder where a Secret is mounted; both are read again when they change.

Only SHA-256 digests of keys are kept, and hashes by which they are found in texts (`key_search`). A client's key is
looked up by its digest. The time of the lookup tells a client nothing about the keys, since a client cannot
choose a digest, and it does not grow with the number of keys.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.types import Scope

from octavo_engine.config.yaml_file import load_yaml
from octavo_engine.errors import ConfigurationError
from octavo_engine.server.admission.key_search import SHORTEST_HIDDEN, KeySearch
from octavo_engine.server.errors import APIError, param_of

log = logging.getLogger("octavo.server")

_MAX_KEYS = 10_000
_FLAG = "--api-key-file"
_PRESENTED = re.compile(rb"\r\n(?:authorization:[ \t]*bearer[ \t]|x-api-key:)([^\r\n]*)", re.IGNORECASE)
"""The headers by which a request presents its key."""
_PIECE = re.compile(rf"[^/:?&=,;\s]{{{SHORTEST_HIDDEN},}}")
"""A part of a text that may be a key of which only the digest is known, and so not the length."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key's name and limits; None means no limit."""

    name: str
    priority: int | None = 0
    """The lowest priority number (the most urgent) that the key's requests may ask for; None: any."""
    weight: float = 1.0
    """The key's share of the engine, relative to other keys'."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    adapters: bool = False
    """True if the key may load and unload LoRA adapters."""

    def priority_of(self, asked: int | None) -> int:
        """Return the priority number of a request of this key that asks for the number `asked`."""
        if self.priority is None:
            return asked or 0
        return self.priority if asked is None else max(asked, self.priority)


ANYONE = Key("", priority=None, adapters=True)
"""The key of all requests if the server has no API keys."""


class KeyEntry(BaseModel):
    """The entry of one API key in the file."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
    key: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    keySha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None  # noqa: N815  (the file's spelling)
    requestsPerMinute: Annotated[int, Field(ge=1, le=1 << 40)] | None = None  # noqa: N815
    tokensPerMinute: Annotated[int, Field(ge=1, le=1 << 40)] | None = None  # noqa: N815
    maxConcurrentRequests: Annotated[int, Field(ge=1, le=1 << 40)] | None = None  # noqa: N815
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    weight: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    rights: list[Literal["adapters"]] | None = None
    """Additional rights: `adapters` allows loading and unloading LoRA adapters."""

    @model_validator(mode="after")
    def _one_secret(self) -> KeyEntry:
        if (self.key is None) == (self.keySha256 is None):
            raise ValueError("needs either key or keySha256")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        return _digest(self.key) if self.key is not None else bytes.fromhex(self.keySha256 or "")

    @property
    def owner(self) -> Key:
        """The key's name and limits, without the secret."""
        return Key(
            self.name,
            self.priority or 0,
            self.weight or 1.0,
            self.requestsPerMinute,
            self.tokensPerMinute,
            self.maxConcurrentRequests,
            "adapters" in (self.rights or ()),
        )


class KeyFile(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    keys: Annotated[list[KeyEntry], Field(max_length=_MAX_KEYS)]


class KeyRing:
    """The keys of --api-key-file. A warning is logged if a key has a priority and `priorities` is False."""

    def __init__(self, path: Path, *, priorities: bool = True) -> None:
        self._path = path
        self._priorities = priorities
        self._seen = _signature(path)
        entries = read_keys(path)
        if not entries:
            raise ConfigurationError(f"--api-key-file {path} holds no key, so that no client could use the API")
        self._take(entries)

    def __len__(self) -> int:
        return len(self._known)

    def owner_of(self, key: str) -> Key | None:
        """Return the name and limits of the key that a client presents; None if the key is not known."""
        return self._known.get(_digest(key))

    def name_in(self, first: bytes) -> str:
        """Return the name of the key that a request's first bytes present; empty if they present no known one.

        It decides only whose turn it is before the request is read. May be called from any thread.
        """
        found = _PRESENTED.search(first)
        key = self.owner_of(found[1].strip().decode("latin-1")) if found else None
        return key.name if key is not None else ""

    def named(self, name: str) -> Key | None:
        """Return the key of this name; None if there is none."""
        return self._by_name.get(name)

    def hide(self, text: str) -> str:
        """Return `text` with `...` in place of each known key. May be called from any thread.

        A key that the file gives by its digest is found if it stands between characters such as `/`, `=` and spaces.
        """
        shown = self._search.hide(text)
        return _PIECE.sub(lambda piece: piece[0] if self.owner_of(piece[0]) is None else "...", shown)

    def reload_if_changed(self) -> None:
        """Read the keys again if the file or folder has changed; if it is not valid, the old keys stay valid."""
        seen = _signature(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._take(read_keys(self._path))
        except ConfigurationError as error:
            log.error("the API keys were not reloaded, and the old ones stay valid: %s", error)
            return
        log.info("API keys reloaded: %d", len(self._known))

    def _take(self, entries: Sequence[KeyEntry]) -> None:
        self._known = {entry.digest: entry.owner for entry in entries}
        self._by_name = {entry.name: entry.owner for entry in entries}
        self._search = KeySearch([entry.key for entry in entries if entry.key is not None])
        self.names = frozenset(self._by_name)
        if not self._priorities and any(entry.priority for entry in entries):
            log.warning(
                "the priority of an API key has no effect without --scheduling-policy or --prefix-cache-policy priority"
            )


def read_keys(path: Path) -> list[KeyEntry]:
    """Return the entries of a YAML file or a folder; a ConfigurationError never quotes a key."""
    try:
        entries = _read_folder(path) if path.is_dir() else KeyFile.model_validate(load_yaml(path, _FLAG)).keys
    except OSError as error:
        raise ConfigurationError(f"--api-key-file {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigurationError(f"--api-key-file {path}: {_first_problem(error)}") from None
    [(duplicate, times)] = Counter(entry.name for entry in entries).most_common(1) or [("", 0)]
    if times > 1:
        raise ConfigurationError(f"--api-key-file {path}: the name {duplicate} appears twice")
    if len({entry.digest for entry in entries}) < len(entries):
        raise ConfigurationError(f"--api-key-file {path}: two names have the same key")
    return entries


def _first_problem(error: ValidationError) -> str:
    """Return where the file is wrong and how; a misspelt field comes before the field that it leaves missing."""
    problems = error.errors(include_input=False)
    unknown = next((problem for problem in problems if problem["type"] == "extra_forbidden"), None)
    problem = unknown or problems[0]
    where = param_of(problem["loc"]) or "it"
    if unknown is None:
        return f"{where}: {problem['msg']}"
    known = KeyEntry.model_fields if len(problem["loc"]) > 1 else KeyFile.model_fields
    close = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
    return f"{where}: there is no such field" + (f", did you mean {close[0]}?" if close else "")


def _read_folder(path: Path) -> list[KeyEntry]:
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
    if len(files) > _MAX_KEYS:
        raise ConfigurationError(f"--api-key-file {path} holds {len(files)} files, more than {_MAX_KEYS}")
    try:
        return [KeyEntry(name=file.name, key=file.read_text(encoding="utf-8").strip()) for file in files]
    except UnicodeDecodeError:
        raise ConfigurationError(f"--api-key-file {path} holds a file that is not UTF-8 text") from None


def _signature(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return a value that changes when the file, or the folder where a Secret is mounted, changes."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files if not file.name.startswith(".")]
    except OSError:
        return ()
    return tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def presented_key(headers: Mapping[str, str]) -> str:
    """Return a request's key, from `Authorization: Bearer KEY` or `X-Api-Key: KEY`; APIError 401 without one."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or headers.get("x-api-key", "").strip()
    if not key:
        raise unauthorized("send your API key as `Authorization: Bearer KEY`, or as `X-Api-Key: KEY`")
    return key


def unauthorized(message: str) -> APIError:
    """Return an APIError 401 with OpenAI's error code."""
    return APIError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def key_of(scope: Scope) -> Key:
    """Return the API key of a request, which the middleware Authentication has found."""
    key: Key = scope.get("state", {}).get("key", ANYONE)
    return key
