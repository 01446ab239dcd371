"""A rendered container as a process of this machine: its arguments, environment and places."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_operator.local.errors import LocalError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Command:
    """The container as a process: what to execute, with which environment."""

    argv: list[str]
    env: dict[str, str]


def translate(
    container: Mapping[str, Any], port: int, folders: Mapping[str, Path], environ: Mapping[str, str]
) -> Command:
    """Return the process for `container`: its places become `folders` (by volume name), its port becomes `port`.

    KeyError, TypeError, AttributeError or ValueError if the container is not one that an API server takes.
    """
    here = places_of(container, folders)

    def argument(text: str) -> str:
        if text.startswith("--host="):
            return f"--host={HOST}"
        if text.startswith(("--port=", "--progress-port=")):
            return f"{text.partition('=')[0]}={port}"
        flag, equals, value = text.partition("=")
        return f"{flag}={here(value)}" if equals else here(text)

    env = {name: value for name, value in environ.items() if not name.startswith("OCTAVO_")}
    env["TMPDIR"] = str(folders["tmp"])
    for variable in container["env"]:
        value = here(variable["value"]) if "value" in variable else _referenced(variable, environ)
        if value is not None:
            env[variable["name"]] = value
    argv = [executable(container["command"][0]), *(argument(text) for text in container["args"])]
    if not all(map(_is_text, (*argv, *env, *env.values()))) or any("=" in name for name in env):
        raise ValueError("an argument or variable has a character that no process can get, such as NUL")
    return Command(argv, env)


def _is_text(given: object) -> bool:
    return isinstance(given, str) and "\0" not in given


def places_of(container: Mapping[str, Any], folders: Mapping[str, Path]) -> Callable[[str], str]:
    """Return a function that maps a path of the container to this machine; other texts stay as they are."""
    places = [(mount["mountPath"], str(folders[mount["name"]])) for mount in container["volumeMounts"]]
    places.sort(key=lambda place: len(place[0]), reverse=True)

    def here(value: str) -> str:
        for path, folder in places:
            if value == path or value.startswith(f"{path}/"):
                return folder + value[len(path) :]
        return value

    return here


def _referenced(variable: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    name, source = variable["name"], variable.get("valueFrom") or {}
    if name in environ:
        return environ[name]
    ((kind, reference),) = source.items() or [("value", {"optional": True})]
    if reference.get("optional"):
        return None
    raise LocalError(f"the variable {name} comes from a {kind} ({reference}); set {name} in the environment")


def executable(name: str) -> str:
    """Return the path of a program beside this one, or of one on the PATH; LocalError if there is none."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise LocalError(f"{name} is not installed: in a checkout of Octavo, make setup or pip install '.[engine]'")
    return found
