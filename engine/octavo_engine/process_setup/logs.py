"""The set-up of logging: lines on standard error, as text for people or as JSON for log collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


class JSONLines(logging.Formatter):
    """A formatter that writes one JSON object a line. A log record's `fields` become fields of the object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, with an exception's traceback in the field `exception`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


TERMINAL = "terminal"
"""The format for a terminal: `serve` shows its start there by itself, and the engine logs only warnings."""


def for_reader(log_format: str) -> str:
    """Return `TERMINAL` for text if standard error is a terminal, else `log_format` unchanged."""
    return TERMINAL if log_format == "text" and sys.stderr.isatty() else log_format


def set_up(log_format: str, level: int = logging.INFO) -> None:
    """Send all log lines of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JSONLines())
    elif log_format == TERMINAL:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of broken forms, which are a 400


def set_up_engine(log_format: str) -> None:
    """Set up logging in a process of the engine: on a terminal, where the server reports progress, only warnings."""
    set_up(log_format, logging.WARNING if log_format == TERMINAL else logging.INFO)
