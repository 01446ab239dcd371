"""Reads the lines of a batch's input file. Each has one request; all are checked before the first is answered.

Bodies are not parsed here: msgspec only finds where they end, and a text worker parses each when its turn comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from octavo_engine.server.openai.batches.objects import LineError

MAX_LINES = 50_000
MAX_LINE_BYTES = 1 << 20
_MOST_ERRORS = 50
"""Errors that a batch reports; after these the file is not read any further."""
_LONGEST_REASON = 300
"""Characters of msgspec's messages that a batch reports: they quote names and values of any length."""
_LINES_AT_ONCE = 50
"""Lines that are checked between two pauses, or whose places are read at a time."""
_PAUSE = 0.001
"""Seconds of a pause, in which other threads get the interpreter's lock."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LinePlace:
    """The place of a line in an input file."""

    number: int
    """From 1."""
    start: int
    """The offset of its first byte."""
    size: int
    """In bytes, at most MAX_LINE_BYTES and a line end if the file has been checked."""


class InputLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of an input file, as clients write it."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _LineBody(msgspec.Struct):
    """The constraints on a line's body: it is an object without `stream`."""

    stream: Any = None


_lines = msgspec.json.Decoder(InputLine)
_bodies = msgspec.json.Decoder(_LineBody)


def lines_of(path: Path, after: LinePlace | None = None) -> Generator[tuple[LinePlace, bytes]]:
    """Yield each line with its place. Of a line that is too long only the beginning is returned."""
    with path.open("rb") as file:
        number, start = (0, 0) if after is None else (after.number, after.start + after.size)
        file.seek(start)
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rest = line
            while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                pass
            end = file.tell()
            yield LinePlace(number, start, end - start), line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            start = end


def requests_after(path: Path, last: LinePlace) -> list[LinePlace]:
    """Return the places of the next lines that are not empty, a few at a time; none at the end of the file.

    Blocks, so call it in a thread. The file is not open between two calls: there may be very many batches.
    """
    with contextlib.closing(lines_of(path, last)) as lines:
        return list(itertools.islice((place for place, line in lines if line.strip()), _LINES_AT_ONCE))


def read_request(path: Path, place: LinePlace) -> InputLine:
    """Return the request in a line of a file that has been checked. Blocks, so call it in a thread."""
    with path.open("rb") as file:
        file.seek(place.start)
        return _lines.decode(file.read(place.size).removeprefix(_BYTE_ORDER_MARK))


def check_input(path: Path, endpoint: str) -> tuple[int, list[LineError]]:
    """Return the number of requests in a file, and their errors. Blocks, so call it in a thread."""
    errors: list[LineError] = []
    seen: set[bytes] = set()
    total = 0
    for place, line in lines_of(path):
        if (number := place.number) > MAX_LINES:
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


def _check(number: int, line: bytes, endpoint: str, seen: set[bytes]) -> LineError | None:
    """Return the error of a line, if it has one. `seen` has the digests of the names of earlier lines."""
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        return LineError("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes", line=number)
    try:
        found = _lines.decode(line)
        body = _bodies.decode(found.body)
    except msgspec.ValidationError as error:
        return LineError("invalid_request", f"the line is not a request: {_reason(error)}", line=number)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"the line is not valid JSON: {_reason(error)}", line=number)
    digest = hashlib.blake2b(found.custom_id.encode(), digest_size=16).digest()  # 50,000 names may have 100 MB
    wrong = _contradiction(number, found, endpoint, streams=bool(body.stream), again=digest in seen)
    seen.add(digest)
    return wrong


def _reason(error: Exception) -> str:
    return str(error)[:_LONGEST_REASON]


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
