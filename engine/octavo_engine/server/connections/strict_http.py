"""A strict HTTP/1.1 parser: a message that a proxy before the server might read differently is refused.

h11 accepts line ends without CR, headers folded over lines, Content-Length beside Transfer-Encoding, and repeated
lengths. Each of them has been used to smuggle a request past a proxy (RFC 9112 sections 2.2, 5.2, 6.1, 6.3, 7.1). It
also accepts any text as Host (section 3.2).
"""

from __future__ import annotations

import re

from h11 import LocalProtocolError
from h11._receivebuffer import ReceiveBuffer

_REQUEST_LINE = re.compile(rb"([^ :]+) ([^ ]*) HTTP/(.*)")
"""Method, target and version; a line of trailers has a colon after its name."""
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?#]+(?=[/?#]|$)", re.IGNORECASE)
"""The scheme and authority before a target's path, which clients send to proxies; every server must accept them."""
HOST = rb"(?:\[[\w.~!$&'()*+,;=:%-]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)(?::[0-9]*)?"
"""The values of a Host header: a name, or an address in brackets, and perhaps a port. Unlike an authority it has no
user (RFC 9110 section 7.2, RFC 3986 section 3.2.2)."""
_HOST = re.compile(HOST)
_NO_TEXT = re.compile(rb"[\x00\x0b\x0c]")
"""Bytes that h11 refuses in a header's value. Its pattern takes quadratic time for one behind many spaces: 5 s and more
for 16,000 of them. So they are refused before it sees them."""
_LONGEST_HEAD = 64 << 10
"""The most bytes of a head or of trailers, even if all of them arrived at once."""
_MOST_LINES = 256
"""Lines of a head or of trailers. h11 takes as long for 16,000 of them, in 64 KiB, as for 35 ordinary requests."""
_CHUNK_SIZE_DIGITS = 16
"""The most hexadecimal digits of a chunk's size, which then has 64 bits."""
_HEXADECIMAL = b"0123456789abcdefABCDEF"
_SMALL_CHUNKS, _CHUNK_BYTES = 1024, 1024
"""A body may have 1,024 chunks of any size; further ones must have 1,024 bytes or more on average."""


class StrictBuffer(ReceiveBuffer):
    """The buffer from which h11 reads heads, trailers and chunk sizes; it checks their syntax strictly."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks, self._chunked_bytes = 0, 0

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head or of trailers once they are complete; LocalProtocolError for any wrong syntax."""
        end = self._data.find(b"\r\n\r\n")
        if end >= 0 and self._data.count(b"\n", 0, end) >= _MOST_LINES:
            raise LocalProtocolError(f"the head has more than {_MOST_LINES} lines", error_status_hint=431)
        before, size = self._data[:_LONGEST_HEAD], len(self._data)
        lines = super().maybe_extract_lines()
        if lines is not None:
            if (used := size - len(self._data)) > _LONGEST_HEAD:
                raise LocalProtocolError(f"the head has more than {_LONGEST_HEAD} bytes", error_status_hint=431)
            _check_head(bytes(before[:used]))
            if lines and (request := _REQUEST_LINE.fullmatch(lines[0])):
                lines[0] = bytearray(b"%s %s HTTP/%s" % (request[1], _in_origin_form(*request.group(1, 2)), request[3]))
            self._chunks, self._chunked_bytes = 0, 0
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line before a chunk once it is complete; LocalProtocolError for a size of more than 64 bits.

        It is also raised for a body of very many small chunks: the parser takes as long for each as for a large one.
        """
        line = super().maybe_extract_next_line()
        if line is None:
            return None
        if line.count(b"\n") > 1 or line.count(b"\r") > 1:  # line ends in it are also quadratic in h11, behind spaces
            raise LocalProtocolError("a line must end with CR LF")
        if _NO_TEXT.search(line):
            raise LocalProtocolError("a line before a chunk must not contain NUL, vertical tabs or form feeds")
        size = bytes(line).partition(b";")[0].strip()
        if len(size) > _CHUNK_SIZE_DIGITS:
            raise LocalProtocolError("a chunk's size has more than 64 bits")
        self._chunks += 1
        if not size or any(digit not in _HEXADECIMAL for digit in size):
            raise LocalProtocolError("a chunk's size must be a hexadecimal number")
        self._chunked_bytes += int(size, 16)
        if self._chunks > _SMALL_CHUNKS + self._chunked_bytes // _CHUNK_BYTES:
            raise LocalProtocolError("the body has too many small chunks; send larger ones")
        return line


def _in_origin_form(method: bytes, target: bytes) -> bytes:
    """Return a target as a path. That of OPTIONS may be `*`, that of CONNECT a host; no route matches these."""
    if absolute := _ABSOLUTE_FORM.match(target):
        rest = target[absolute.end() :]
        return rest if rest.startswith(b"/") else b"/" + rest
    if target.startswith(b"/") or (method, target) == (b"OPTIONS", b"*") or method == b"CONNECT":
        return target
    raise LocalProtocolError("the target must begin with / or http://HOST")


def _check_head(head: bytes) -> None:
    ends = head.count(b"\r\n")
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise LocalProtocolError("a line must end with CR LF")
    if _NO_TEXT.search(head):
        raise LocalProtocolError("a head must not contain NUL, vertical tabs or form feeds")
    lines = head.split(b"\r\n")
    if (request := _REQUEST_LINE.fullmatch(lines[0])) and request[3] not in (b"1.0", b"1.1"):
        raise LocalProtocolError("the version must be HTTP/1.1 or HTTP/1.0")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise LocalProtocolError("a header must not be folded over several lines")
    fields = [line.partition(b":") for line in lines]
    bodies = [(name, value) for name, _, value in fields if name.lower() in (b"content-length", b"transfer-encoding")]
    if not all(_HOST.fullmatch(value.strip(b" \t")) for name, _, value in fields if name.lower() == b"host"):
        raise LocalProtocolError("the Host header must be a name or an address, perhaps with a port")
    if len(bodies) > 1 or any(b"," in value for _, value in bodies):
        raise LocalProtocolError("give one Content-Length or one Transfer-Encoding")
