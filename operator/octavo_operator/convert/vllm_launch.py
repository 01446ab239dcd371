"""How a container starts vLLM's server, by itself or in a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.convert.draft import NotConvertibleError

_SHELLS = ("sh", "bash", "ash", "dash")
_END = set(";|&\n()")
_REDIRECTION = set("<>")
_COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<![^\s;|&])(?:#.*|\d+(?=[<>]))""")
"""A comment, or the file descriptor of a redirection as in 2>&1; or a quoted text, which may look like one."""
_RUNNERS = frozenset({
    "{", "!", "then", "else", "do", "exec", "env", "command", "time", "nohup", "nice", "numactl", "taskset", "tini",
    "sudo", "uv", "run", "python", "python3",
})  # fmt: skip
"""Words that may stand before the program that a command runs."""
_PRINTERS = frozenset({"echo", "printf", ":"})
_QUOTED = "\0"
"""Marks a quoted text, so that a quoted operator is no operator. No argument of a program can contain it."""


_PLAIN = "write vLLM's arguments as the container's args and convert it again"


@dataclass(frozen=True)
class Launch:
    """`arguments` are the words after `vllm serve`, `others` what else the container's shell script says."""

    arguments: list[str]
    others: list[str] = field(default_factory=list)


def find_launch(container: Mapping[str, Any]) -> Launch | None:
    """Return how the container starts vLLM's server, or None if it runs something else."""
    words = [str(word) for word in (*(container.get("command") or []), *(container.get("args") or []))]
    script = _script(words)
    if script is not None:
        return _launch_of_script(script) if "vllm" in script else None
    if (start := _start(words)) is not None:
        return Launch(words[start:])
    started_by_image = not container.get("command") and "vllm" in str(container.get("image", ""))
    return Launch(words) if started_by_image else None


def _start(words: Sequence[str]) -> int | None:
    """Return the index of the first argument of vLLM's server."""
    for index in range(len(words)):
        if words[index].rpartition("/")[2] == "vllm" and words[index + 1 : index + 2] == ["serve"]:
            return index + 2
        if words[index] == "vllm.entrypoints.openai.api_server":
            return index + 1
    return None


def _script(words: Sequence[str]) -> str | None:
    """Return the script that a command gives to a shell with `-c`, or None if it runs no shell."""
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        return None
    options = [index for index, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)]
    return words[options[0] + 1] if options else None


def _launch_of_script(script: str) -> Launch | None:
    """Return how a shell script starts vLLM; NotConvertibleError if that cannot be told without a shell."""
    arguments, others = None, []
    for command in _commands(script):
        start = _start_of_command(command)
        if start is None or arguments is not None:
            others.append(shlex.join(command))
        else:
            arguments = command[start:]
            others += [word for word in command[:start] if re.match(r"\w+=", word)]
    return None if arguments is None else Launch(arguments, [one for one in others if one])


def _start_of_command(command: Sequence[str]) -> int | None:
    """Return the index of the first argument of vLLM's server if the command runs it, instead of printing its name."""
    start = _start(command)
    if start is None or command[0] in _PRINTERS:
        return None
    before = command[: start - 2]
    for previous, word in zip(("", *before), before, strict=False):
        known = word.rpartition("/")[2] in _RUNNERS or word.startswith("-") or re.match(r"\w+=", word)
        if not known and not previous.startswith("-"):
            raise NotConvertibleError(
                f"its shell script says {shlex.join(command)!r}, which may run vLLM or not; {_PLAIN}"
            )
    return start


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, without comments and redirections; ValueError for an open quote."""
    script = _COMMENT.sub(lambda found: _QUOTED + found[1] if found[1] else "", script).replace("\\\n", " ")
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";|&\n()<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    is_file = False
    for word in lexer:
        computed = "`" in word.partition(_QUOTED)[0] or (word.startswith("(") and command and command[-1].endswith("$"))
        if computed or (word.startswith("<<") and set(word) <= _REDIRECTION):
            what = "computes words by $(...) or `...`" if computed else "has a here-document"
            raise NotConvertibleError(f"its shell script {what}; {_PLAIN}")
        if word and set(word) <= _END:
            yield command
            command, is_file = [], False
        elif word and set(word) <= _END | _REDIRECTION:
            is_file = True
        elif is_file:
            is_file = False
        else:
            command.append(word.replace(_QUOTED, ""))
    yield command
