"""Reads the lines of a batch's input file. Each has one request; all are checked before the first is answered.

Bodies are not parsed here: msgspec only finds where they end, and a text worker parses each when its turn comes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from octavo_engine.server.openai.batches.objects import LineError

MAX_LINES = 50_000
MAX_LINE_BYTES = 1 << 20
_MOST_ERRORS = 50
"""Errors that a batch reports; after these the file is not read any further."""
_LINES_AT_ONCE = 50
"""Lines that are checked between two pauses."""
_PAUSE = 0.001
"""Seconds of a pause, in which other threads get the interpreter's lock."""


class InputLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of an input file, as clients write it."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    """The constraints on a line's body: it is an object without `stream`."""

    stream: Any = None


_lines = msgspec.json.Decoder(InputLine)
_bodies = msgspec.json.Decoder(_Body)


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number, from 1. Of a line that is too long only the beginning is returned."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rest = line
            while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                pass
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield number, line


def requests_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
    return ((number, line) for number, line in lines_of(path) if line.strip())


def read_line(line: bytes) -> InputLine:
    """Return the request in a line of a file that has been checked."""
    return _lines.decode(line)


def check_input(path: Path, endpoint: str) -> tuple[int, list[LineError]]:
    """Return the number of requests in a file, and their errors. Blocks, so call it in a thread."""
    errors: list[LineError] = []
    seen: set[str] = set()
    total = 0
    for number, line in lines_of(path):
        if number > MAX_LINES:
            return total, [LineError("too_many_requests", f"the file has more than {MAX_LINES} lines; send several")]
        if number % _LINES_AT_ONCE == 0:
            time.sleep(_PAUSE)
        if not line.strip():
            continue
        total += 1
        if (error := _check(number, line, endpoint, seen)) is not None:
            errors.append(error)
        if len(errors) >= _MOST_ERRORS:
            break
    if total == 0:
        return 0, [LineError("empty_file", "the file has no lines; send one request in each")]
    return total, errors


def _check(number: int, line: bytes, endpoint: str, seen: set[str]) -> LineError | None:
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        return LineError("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes", line=number)
    try:
        found = _lines.decode(line)
        body = _bodies.decode(found.body)
    except msgspec.ValidationError as error:
        return LineError("invalid_request", f"the line is not a request: {error}", line=number)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"the line is not valid JSON: {error}", line=number)
    wrong = _contradiction(number, found, endpoint, streams=bool(body.stream), again=found.custom_id in seen)
    seen.add(found.custom_id)
    return wrong


def _contradiction(number: int, found: InputLine, endpoint: str, *, streams: bool, again: bool) -> LineError | None:
    """Return the error of a line that is a request but does not fit its batch, None if it fits."""
    if found.url != endpoint:
        message = f"the line is for {found.url[:200]!r}, and the batch for {endpoint}"
        return LineError("mismatched_endpoint", message, "url", number)
    if again:
        message = f"the custom_id {found.custom_id[:100]!r} appears twice"
        return LineError("duplicate_custom_id", message, "custom_id", number)
    if streams:
        return LineError("unsupported_parameter", "stream: a batch has no streams; leave it out", "body.stream", number)
    return None
