"""The response with a file's content, or with the ranges of it that a client asks for."""

from __future__ import annotations

from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable

from octavo_engine.server.errors import APIError


class FileContent(FileResponse):
    """A response with a file's content. As RFC 9110 says, an unreadable Range is ignored; one beyond the end is 416."""

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            return []
        except RangeNotSatisfiable:
            message = f"the range lies beyond the file's {file_size} bytes"
            headers = {"Content-Range": f"bytes */{file_size}"}
            raise APIError(416, message, code="range_not_satisfiable", headers=headers) from None
