"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies and responses.

The engine reads and checks an adapter in separate threads, so that running requests continue. API keys take turns at
these: a source that answers slowly, or never, holds up other loads of the same key alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from octavo_engine.config.adapters import ADAPTERS_READ_AT_ONCE, MAX_ADAPTERS, is_allowed_source
from octavo_engine.errors import AdapterNotFoundError, EngineDeadError, ModelLoadError
from octavo_engine.server.adapter_file import AdapterName
from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.fair_pool import FairPool
from octavo_engine.server.errors import APIError, engine_dead
from octavo_engine.server.middleware.body_limit import upload_of
from octavo_engine.server.openai.bodies.body import Body, parse
from octavo_engine.server.openai.bodies.field_types import WHOLE
from octavo_engine.server.serving import Serving

_MOST_BYTES = 64 << 10
"""Largest body in bytes: it holds only a name and a path."""


class LoadBody(Body):
    """The body of POST /v1/load_lora_adapter."""

    lora_name: AdapterName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    """A directory, a Hugging Face id, or s3://bucket/prefix."""
    load_inplace: bool | None = None
    """True if a loaded adapter of this name is to be replaced; otherwise its name is an error."""


class UnloadBody(Body):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: AdapterName
    lora_int_id: Annotated[int, WHOLE] | None = None
    """Accepted because vLLM has it, but without effect: adapters have no numbers here."""


def routes(serving: Serving) -> APIRouter:
    """Return the routes that load and unload an adapter."""
    router = APIRouter()
    locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
    loading: set[str] = set()
    turns: FairPool[None] = FairPool(ADAPTERS_READ_AT_ONCE, serving.several_keys)
    for _ in range(ADAPTERS_READ_AT_ONCE):
        turns.add(None)

    @router.post("/v1/load_lora_adapter", response_model=None)
    async def load(request: Request) -> Response:
        body = parse(LoadBody, _body(serving, request))
        _check_for_keys(serving, body)
        await _check_source(serving.config.lora_sources, body.lora_path)
        async with locks.setdefault(body.lora_name, asyncio.Lock()):
            _check_room(serving.engine.state.adapters.keys() | loading, body.lora_name)
            loading.add(body.lora_name)
            try:
                await _load(serving, body, turns, key_of(request.scope).name)
            finally:
                loading.discard(body.lora_name)
            warning = serving.engine.state.adapters[body.lora_name].warning
        success = f"Success: LoRA adapter '{body.lora_name}' added successfully."
        return PlainTextResponse(f"{success}\nWarning: {warning}" if warning else success)

    @router.post("/v1/unload_lora_adapter", response_model=None)
    async def unload(request: Request) -> Response:
        body = parse(UnloadBody, _body(serving, request))
        async with locks.setdefault(body.lora_name, asyncio.Lock()):
            if body.lora_name not in serving.engine.state.adapters:
                raise _not_found(f"The lora adapter '{body.lora_name}' cannot be found.", "lora_name")
            await serving.engine.unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


def _check_for_keys(serving: Serving, body: LoadBody) -> None:
    """Raise APIError 400 for an API key in the name or the path: others can read both, in lists, metrics and logs."""
    for field, text in (("lora_name", body.lora_name), ("lora_path", body.lora_path)):
        if serving.hide_keys(text) != text:
            raise APIError(400, f"{field}: contains an API key of this server", param=field)


async def _check_source(sources: Sequence[str], path: str) -> None:
    """Raise APIError 403 if --lora-sources is given and does not name the place of an adapter."""
    if sources and not await asyncio.to_thread(is_allowed_source, path, sources):
        message = f"lora_path: adapters are loaded only from {', '.join(sources)} (--lora-sources)"
        raise APIError(403, message, param="lora_path", code="permission_denied")


def _body(serving: Serving, request: Request) -> bytes:
    """Return the request's body if it may change adapters; APIError 400, 403 or 413 otherwise."""
    upload = upload_of(request.scope)
    try:
        if not key_of(request.scope).adapters:
            message = "this API key may not change adapters: give it `rights: [adapters]` in --api-key-file"
            raise APIError(403, message, code="permission_denied")
        if serving.config.lora_modules_file is not None:
            message = "the adapters of this server are those of --lora-modules-file: change them there"
            raise APIError(403, message, code="permission_denied")
        if not serving.model().info.max_loras:
            message = "this server serves no adapters: start it with --enable-lora"
            raise APIError(400, message, code="adapters_not_enabled")
        if len(upload) > _MOST_BYTES:
            raise APIError(413, f"the body has more than {_MOST_BYTES} bytes", code="request_too_large")
        return upload.take()
    finally:
        upload.release()


def _check_room(names: Set[str], name: str) -> None:
    """Raise APIError 400 if `name` is new and the server has, or is loading, MAX_ADAPTERS adapters already."""
    if name not in names and len(names) >= MAX_ADAPTERS:
        message = f"lora_name: {len(names)} adapters are loaded, and a server may have {MAX_ADAPTERS}"
        raise APIError(
            400, f"{message}; unload one with POST /v1/unload_lora_adapter", param="lora_name", code="too_many_adapters"
        )


async def _load(serving: Serving, body: LoadBody, turns: FairPool[None], key: str) -> None:
    name = body.lora_name
    if name in serving.names:
        raise APIError(400, f"lora_name: {name!r} is the base model's own name", param="lora_name")
    if name in serving.engine.state.adapters and not body.load_inplace:
        message = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
        raise APIError(400, f"{message}'load_inplace' to True.", param="lora_name")
    await turns.acquire(key)
    try:
        await serving.engine.load_adapter(name, body.lora_path)
    except AdapterNotFoundError as error:
        raise _not_found(f"No adapter found: {error}", "lora_path") from None
    except ModelLoadError as error:
        raise APIError(400, str(error), param="lora_path", code="invalid_adapter") from None
    except EngineDeadError as error:
        raise engine_dead(str(error)) from None
    finally:
        turns.release(key, None)


def _not_found(message: str, param: str) -> APIError:
    return APIError(404, message, param=param, code="not_found")
