"""The endpoints of /v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TypeVar

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.bytes_in_use import BytesInUse
from octavo_engine.server.connections.full_response import LIST_SECONDS, FullResponse
from octavo_engine.server.error_responses import for_anthropic
from octavo_engine.server.errors import APIError
from octavo_engine.server.middleware.body_limit import upload_of
from octavo_engine.server.openai.batches.batches import Batches
from octavo_engine.server.openai.batches.file_content import FileContent
from octavo_engine.server.openai.batches.objects import BatchObject, Deleted, FileObject, Page, encode
from octavo_engine.server.openai.batches.protocol import BatchBody
from octavo_engine.server.openai.batches.storage import Owned, Storage, StorageError
from octavo_engine.server.openai.batches.upload import receive_file
from octavo_engine.server.openai.bodies.body import parse

FILES = "/v1/files"
_FILE = f"{FILES}/{{file_id}}"
Listed = TypeVar("Listed", FileObject, BatchObject)
_MOST_BYTES = 64 << 10
"""The most bytes of the body of POST /v1/batches."""


def routes(batches: Batches | None, unread: BytesInUse) -> APIRouter:
    """Return the routes; if `batches` is None, they answer 404 with the flag that enables them.

    Lists count in `unread` until their clients have read them, as one may have some megabytes.
    """
    router = APIRouter()
    if batches is None:
        for path in (FILES, "/v1/batches"):
            for route in (path, path + "/{rest:path}"):
                router.add_api_route(
                    route, _disabled, methods=["GET", "HEAD", "POST", "DELETE"], include_in_schema=False
                )
        return router
    _add_files(router, batches.storage, unread)
    _add_file(router, batches.storage)
    _add_batches(router, batches, unread)
    return router


async def _disabled() -> Response:
    message = "this server keeps no files and batches; serve with --batch-storage FOLDER"
    raise APIError(404, message, code="not_found", headers={"Connection": "close"})


def _add_files(router: APIRouter, storage: Storage, unread: BytesInUse) -> None:
    @router.post(FILES, response_model=None)
    async def create_file(request: Request) -> Response:
        try:
            return _json(await receive_file(request, storage, await _owner(request, storage)))
        except ClientDisconnect:
            return Response(status_code=499)

    @router.head(FILES, include_in_schema=False)
    @router.get(FILES, response_model=None)
    async def list_files(request: Request) -> Response:
        files = (await _owner(request, storage)).files
        if (purpose := request.query_params.get("purpose")) is not None:
            files = {name: file for name, file in files.items() if file.purpose == purpose}
        return _list(_page(request, files, default=10_000, most=10_000), unread)


def _add_file(router: APIRouter, storage: Storage) -> None:
    @router.head(_FILE, include_in_schema=False)
    @router.get(_FILE, response_model=None)
    async def get_file(request: Request, file_id: str) -> Response:
        return _json(_file(await _owner(request, storage), file_id))

    @router.head(f"{_FILE}/content", include_in_schema=False)
    @router.get(f"{_FILE}/content", response_model=None)
    async def get_content(request: Request, file_id: str) -> Response:
        owner = await _owner(request, storage)
        path = owner.path(_file(owner, file_id).id)
        try:
            stat_result = await asyncio.to_thread(path.stat)
        except FileNotFoundError:  # it has expired, or was deleted, just now
            raise _no_file(file_id) from None
        return FileContent(storage, owner, path, stat_result)

    @router.delete(_FILE, response_model=None)
    async def delete_file(request: Request, file_id: str) -> Response:
        owner = await _owner(request, storage)
        file = _file(owner, file_id)
        if any(batch.input_file_id == file_id for batch in owner.active):
            message = "a batch that has not ended reads this file; cancel it first"
            raise APIError(400, message, param="file_id", code="file_in_use")
        await storage.discard(owner, file_id, file.bytes)
        return _json(Deleted(id=file_id))


def _add_batches(router: APIRouter, batches: Batches, unread: BytesInUse) -> None:
    storage = batches.storage

    @router.post("/v1/batches", response_model=None)
    async def create_batch(request: Request) -> Response:
        upload = upload_of(request.scope)
        if len(upload) > _MOST_BYTES:
            raise APIError(413, f"the body has more than {_MOST_BYTES} bytes", code="request_too_large")
        return _json(await batches.create(await _owner(request, storage), parse(BatchBody, upload.data)))

    @router.head("/v1/batches", include_in_schema=False)
    @router.get("/v1/batches", response_model=None)
    async def list_batches(request: Request) -> Response:
        return _list(_page(request, (await _owner(request, storage)).batches, default=20, most=100), unread)

    @router.head("/v1/batches/{batch_id}", include_in_schema=False)
    @router.get("/v1/batches/{batch_id}", response_model=None)
    async def get_batch(request: Request, batch_id: str) -> Response:
        return _json(_batch(await _owner(request, storage), batch_id))

    @router.post("/v1/batches/{batch_id}/cancel", response_model=None)
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        batch = _batch(await _owner(request, storage), batch_id)
        await batches.cancel(batch)
        return _json(batch)


async def _owner(request: Request, storage: Storage) -> Owned:
    """Return the files and batches of the request's key that have not expired; APIError 404 for Anthropic's SDK.

    Its files are for prompts, and are other objects.
    """
    if for_anthropic(request.scope):
        message = "Anthropic's Files API is not supported: files on this server are input of OpenAI's batches"
        raise APIError(404, message, code="not_found", headers={"Connection": "close"})
    owner = storage.of(key_of(request.scope).name)
    with contextlib.suppress(StorageError):  # it has been logged; a file that cannot be removed stops no other request
        await storage.expire(owner)
    return owner


def _file(owner: Owned, file_id: str) -> FileObject:
    if (file := owner.files.get(file_id)) is None:
        raise _no_file(file_id)
    return file


def _no_file(file_id: str) -> APIError:
    return APIError(404, f"there is no file {file_id[:100]!r}", param="file_id", code="file_not_found")


def _batch(owner: Owned, batch_id: str) -> BatchObject:
    if (batch := owner.batches.get(batch_id)) is None:
        raise APIError(404, f"there is no batch {batch_id[:100]!r}", param="batch_id", code="batch_not_found")
    return batch


def _page(request: Request, entries: Mapping[str, Listed], *, default: int, most: int) -> Page:
    """Return the part of a list that the query asks for; APIError 400 if the query is not valid.

    It begins after `after`, has at most `limit` entries (1 to `most`), the newest first unless `order` is `asc`.
    """
    query = request.query_params
    text = query.get("limit", str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise APIError(400, f"limit: must be a whole number from 1 to {most}", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise APIError(400, "order: must be asc or desc", param="order")
    names = list(entries) if order == "asc" else list(entries)[::-1]
    if (after := query.get("after")) is not None:
        if after not in entries:
            raise APIError(400, f"after: there is no {after[:100]!r} in this list", param="after")
        names = names[names.index(after) + 1 :]
    shown = names[: int(text)]
    return Page(
        data=[entries[name] for name in shown],
        first_id=shown[0] if shown else None,
        last_id=shown[-1] if shown else None,
        has_more=len(names) > len(shown),
    )


def _json(value: FileObject | BatchObject | Deleted) -> Response:
    return Response(encode(value), media_type="application/json")


def _list(page: Page, unread: BytesInUse) -> Response:
    return FullResponse(encode(page), unread, time.monotonic() + LIST_SECONDS)
