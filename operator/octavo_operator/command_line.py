"""The parser of both programs: one sentence instead of a page of usage, and the nearest command for a mistyped one."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

USAGE_ERROR = 2


def page_of(does: str, examples: str) -> dict[str, Any]:
    """Return the arguments of a command's parser: its help says what it `does` and ends with the examples."""
    return {
        "description": f"{does[0].upper()}{does[1:]}.",
        "epilog": f"examples:{examples}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


class Parser(argparse.ArgumentParser):
    """A mistake ends the program with exit code 2 and one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the flags are listed."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = difflib.get_close_matches(value, action.choices, 1)
            self.error(f"there is no command {value}" + (f", did you mean {close[0]}?" if close else ""))
        super()._check_value(action, value)
