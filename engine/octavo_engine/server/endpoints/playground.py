"""GET / and the files of its page, the playground: static, read once at the start, and open to clients without a key.

The files are built from engine/playground while the package is installed. They hold no data: the page asks its user for
a key and uses the API as any other client does.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

FOLDER = Path(__file__).parents[1] / "playground_files"
_MAX_BYTES = 4 << 20
"""Bytes of all files together, which stay in memory."""
_NOT_BUILT = (
    "This engine runs, but its playground is missing: it is built while the package is installed, and npm reached no "
    "registry then. `uv build --wheel` in a checkout says why. The API is complete without it; start the engine with "
    "--no-playground to serve nothing here.\n"
)
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks again each time, and 304 is the answer until the engine is upgraded
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page: its bytes, the media type, and an ETag that changes with the bytes."""

    body: bytes
    media_type: str
    etag: str


def read_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Return the built files by the path at which each is served (index.html at `/`); none if they were not built."""
    found: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")) if (folder / "index.html").is_file() else ():
        if path.is_file():
            body = path.read_bytes()
            media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            name = path.relative_to(folder).as_posix()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found["/" if name == "index.html" else f"/{name}"] = StaticFile(body, media_type, etag)
    if (total := sum(len(each.body) for each in found.values())) > _MAX_BYTES:
        raise ValueError(f"the playground's files have {total} bytes, more than {_MAX_BYTES}: {folder}")
    return found


def routes(files: dict[str, StaticFile]) -> APIRouter:
    """Return one route for each file, so that no path that a client sends names a file on the disk."""
    router = APIRouter()
    if not files:
        router.add_api_route("/", _explain, methods=["GET", "HEAD"], include_in_schema=False)
    for path, file in files.items():
        router.add_api_route(path, _answer(file), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _answer(file: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    headers = _SECURITY | {"ETag": file.etag}

    async def answer(request: Request) -> Response:
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return answer


async def _explain() -> Response:
    return PlainTextResponse(_NOT_BUILT, 404, headers=_SECURITY)
