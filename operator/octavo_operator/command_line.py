"""The parser of both programs: one sentence instead of a page of usage, and the nearest command for a mistyped one."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

OUTPUT_ERROR = 1
USAGE_ERROR = 2


def with_written_output(program: str, command: Callable[[], int]) -> int:
    """Return the exit code of `command`, or OUTPUT_ERROR if its output cannot be written.

    A pipe whose reader has gone, as with `| head`, ends the program without a word; a full disk ends it with a line.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell, as with `>&-`
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale may lack letters that a model writes
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write(f"{program}: the output cannot be written: {error.strerror}\n")
    else:
        return code
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())  # what is held would be written again at the end
    return OUTPUT_ERROR


def page_of(does: str, examples: str) -> dict[str, Any]:
    """Return the arguments of a command's parser: its help says what it `does` and ends with the examples."""
    return {
        "description": f"{does[0].upper()}{does[1:]}.",
        "epilog": f"examples:{examples}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def whole_number_within(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number from `least` to `most` (argparse's `type=`)."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return value

    return read


port = whole_number_within(0, 65_535)


class Parser(argparse.ArgumentParser):
    """A mistake ends the program with exit code 2 and one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the flags are listed."""
        see = " See" if message.endswith("?") else "; see"
        self.exit(USAGE_ERROR, f"{self.prog}: {message}{see} {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse all arguments. An unknown one is an error that names the help of its command, not of the program."""
        self._check_first(sys.argv[1:] if args is None else list(args))
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [option for action in self._actions for option in action.option_strings]
            name = unknown[0].split("=")[0]
            close = difflib.get_close_matches(name, flags, 1)
            kind = "flag" if name.startswith("-") else "argument"
            self.error(f"unknown {kind} {name}" + (f", did you mean {close[0]}?" if close else ""))
        return found, unknown

    def _check_first(self, words: list[str]) -> None:
        """End with an error if a flag of a command stands before it: argparse takes its value for a command."""
        first = words[0].split("=")[0] if words else ""
        for command in (a for a in self._actions if isinstance(a, argparse._SubParsersAction)):
            having = [name for name, parser in command.choices.items() if first in parser._option_string_actions]
            if having and first not in self._option_string_actions:
                self.error(f"flags come after the command, as in {self.prog} {having[0]} {words[0]}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = difflib.get_close_matches(value, action.choices, 1)
            self.error(f"there is no command {value}" + (f", did you mean {close[0]}?" if close else ""))
        super()._check_value(action, value)
