"""Receives a file that a client uploads as multipart/form-data, and writes it to the disk as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import IO, TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from octavo_engine.server.errors import APIError
from octavo_engine.server.middleware.body_limit import check_encoding, discard
from octavo_engine.server.openai.batches.objects import FileObject
from octavo_engine.server.openai.batches.protocol import LEAST_LIFETIME, MOST_LIFETIME
from octavo_engine.server.openai.batches.storage import Owned, Storage, append, new_file_id, on_disk

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FILE_BYTES = 200 << 20
UPLOAD_SECONDS = 600.0
"""The time in which a file must have arrived."""
_MOST_OVERHEAD = 64 << 10
"""The most bytes of a form besides its file."""
_LONGEST_FIELD = 1024
_WRITTEN_AT_ONCE = 4096
"""Bytes of a file that are written at a time, except for its last ones: each write takes a turn of a thread."""
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
"""The names of the two fields of `expires_after` in a form."""
_CLOSE = {"Connection": "close"}
"""A header of answers that are sent before all of the body has arrived."""


class _Form:
    """Parses a form's bytes; `content` has the file's bytes since `content` was last emptied.

    All other bytes of the form are limited, since a form of a million small parts would take long to read.
    """

    def __init__(self, boundary: bytes) -> None:
        self.content = bytearray()
        self._beside = 0
        self.fields: dict[str, bytearray] = {}
        self.filename: str | None = None
        self.ended = False
        self._header, self._value, self._part = bytearray(), bytearray(), ""
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin_part,
            "on_header_begin": self._begin_header,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._take_header,
            "on_part_data": self._take_data,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise _invalid(f"the form cannot be read: {error}") from None

    def write(self, data: bytes) -> None:
        """Parse a part of the body; APIError 400 if it is not a form, or has too many bytes besides its file."""
        had = len(self.content)
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise _invalid(f"the body is not a form: {error}") from None
        self._beside += len(data) - (len(self.content) - had)
        if self._beside > _MOST_OVERHEAD:
            raise _invalid(
                f"the form has more than {_MOST_OVERHEAD} bytes besides its file; send only file and purpose"
            )

    def _begin_part(self) -> None:
        self._part = ""

    def _begin_header(self) -> None:
        self._header.clear()
        self._value.clear()

    def _end(self) -> None:
        self.ended = True

    def _take_header(self) -> None:
        if bytes(self._header).lower() != b"content-disposition":
            return
        options = parse_options_header(bytes(self._value))[1]
        self._part = options.get(b"name", b"").decode(errors="replace")
        if self._part == "file":
            if self.filename is not None:
                raise _invalid("there is more than one file; send them one by one")
            self.filename = options.get(b"filename", b"").decode(errors="replace")[:255]
        else:
            self.fields[self._part] = bytearray()

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == "file":
            self.content += data[start:end]
            return
        field = self.fields.setdefault(self._part, bytearray())
        field += data[start:end]
        if len(field) > _LONGEST_FIELD:
            raise _invalid(f"{self._part[:100]}: has more than {_LONGEST_FIELD} bytes", self._part[:100])


async def receive_file(request: Request, storage: Storage, owner: Owned) -> FileObject:
    """Receive a file, list it and return its object.

    APIError if the body is not a form with a file, or is too large; what was received of it is then removed.
    """
    body = _UploadBody(request.receive)
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            return await _receive(request, body, storage, owner)
    except APIError:
        await body.discard_rest()
        raise
    except TimeoutError:
        message = f"the file did not arrive within {UPLOAD_SECONDS:.0f} s"
        raise APIError(408, message, code="upload_timeout", headers=_CLOSE) from None


async def _receive(request: Request, body: _UploadBody, storage: Storage, owner: Owned) -> FileObject:
    check_encoding(request.scope)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise _invalid("send the file as multipart/form-data, with the fields purpose and file")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_FILE_BYTES + _MOST_OVERHEAD:
        raise _too_large()
    storage.check_number(owner)
    with storage.transfer(owner):
        return await _write(body, _Form(options[b"boundary"]), storage, owner)


async def _write(body: _UploadBody, form: _Form, storage: Storage, owner: Owned) -> FileObject:
    """Write the file of a form to the storage and list it. After an error nothing of it is left."""
    file_id = new_file_id()
    writing = _Writing(storage, owner, file_id)
    try:
        await writing.write_all(body, form)
        lifetime = _lifetime(form)
        return await storage.add(owner, file_id, form.filename or file_id, writing.size, "batch", lifetime)
    except BaseException:
        await asyncio.shield(storage.discard(owner, file_id, writing.size))
        raise


class _UploadBody:
    """The parts of a request's body as they arrive."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientDisconnect
            self._more = message.get("more_body", False)
            yield message.get("body", b"")

    async def discard_rest(self) -> None:
        """Read the rest of the body, up to a limit, so that the client can read the answer."""
        if self._more:
            await discard(self._receive)


class _Writing:
    """Writes an uploaded file to the storage, and counts its bytes."""

    def __init__(self, storage: Storage, owner: Owned, file_id: str) -> None:
        self._storage, self._owner, self._file_id = storage, owner, file_id
        self.size = 0

    async def write_all(self, body: _UploadBody, form: _Form) -> None:
        """Write the file that the form contains; APIError if the form is not valid or too large."""
        read = 0
        with await self._storage.create(self._owner, self._file_id) as file:
            async for data in body:
                read += len(data)
                if read > MAX_FILE_BYTES + _MOST_OVERHEAD:
                    raise _too_large()
                form.write(data)
                await self._append(file, form)
        _check(form)

    async def _append(self, file: IO[bytes], form: _Form) -> None:
        if len(form.content) < (1 if form.ended else _WRITTEN_AT_ONCE):
            return
        self._storage.take(self._owner, len(form.content))
        self.size += len(form.content)
        await on_disk(append, file, bytes(form.content))
        form.content.clear()


def _check(form: _Form) -> None:
    if not form.ended:
        raise _invalid("the form has no end")
    if "" in form.fields:
        raise _invalid('a part of the form has no name; give each its own, as in name="file"')
    unknown = next((name for name in form.fields if name not in ("purpose", _ANCHOR, _SECONDS)), None)
    if unknown is not None:
        name = unknown[:100]
        raise APIError(
            400, f"{name}: is not supported by this version; leave it out", param=name, code="unsupported_parameter"
        )
    if form.filename is None:
        raise APIError(400, "file is required", param="file", code="missing_required_parameter")
    if "purpose" not in form.fields:
        raise APIError(400, "purpose is required", param="purpose", code="missing_required_parameter")
    if form.fields["purpose"] != b"batch":
        raise _invalid("purpose: must be batch, the only purpose of files on this server", "purpose")


def _lifetime(form: _Form) -> int | None:
    """Return the seconds after which the file expires; None if it does not expire."""
    if _ANCHOR not in form.fields and _SECONDS not in form.fields:
        return None
    if bytes(form.fields.get(_ANCHOR, b"")) != b"created_at":
        raise _invalid(f"{_ANCHOR}: must be created_at", _ANCHOR)
    text = bytes(form.fields.get(_SECONDS, b""))
    if not text.isdigit() or len(text) > 9 or not LEAST_LIFETIME <= int(text) <= MOST_LIFETIME:
        message = f"{_SECONDS}: must be a whole number from {LEAST_LIFETIME} to {MOST_LIFETIME}"
        raise _invalid(message, _SECONDS)
    return int(text)


def _invalid(message: str, param: str | None = None) -> APIError:
    return APIError(400, message, param=param, headers=_CLOSE)


def _too_large() -> APIError:
    message = f"the file has more than {MAX_FILE_BYTES} bytes; send several"
    return APIError(413, message, code="request_too_large", param="file", headers=_CLOSE)
