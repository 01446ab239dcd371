"""GET /v1/models and /v1/models/{model}, in OpenAI's shape, or in Anthropic's for its clients.

They answer 503 until the model can be used, since many clients use them as a readiness probe.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.anthropic.answers import ModelInfo, ModelPage
from octavo_engine.server.connections.full_response import LIST_SECONDS, FullResponse
from octavo_engine.server.error_responses import for_anthropic
from octavo_engine.server.openai.answers.objects import Model, ModelList, encode
from octavo_engine.server.serving import Serving


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints."""
    router = APIRouter()

    def models() -> list[Model]:
        info, base = serving.model().info, serving.names[0]
        sampling = info.sampling if info.generates else None
        entry = partial(Model, max_model_len=info.max_model_len, default_sampling_params=sampling)
        adapters = serving.engine.state.adapters.values()
        return [
            *(entry(id=name, created=serving.started_at, root=base) for name in serving.names),
            *(entry(id=each.name, created=each.created, root=each.path, parent=base) for each in adapters),
        ]

    def listed(body: bytes) -> Response:
        """Return the response of a list. Its bytes count as unread until they are: many adapters make megabytes."""
        return FullResponse(body, serving.unread, time.monotonic() + LIST_SECONDS)

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        found = models()
        if for_anthropic(request.scope):
            page = ModelPage(data=[*map(_model_info, found)], first_id=found[0].id, last_id=found[-1].id)
            return listed(encode(page))
        return listed(encode(ModelList(data=found)))

    @router.head("/v1/models/{model:path}", include_in_schema=False)
    @router.get("/v1/models/{model:path}")
    async def get_model(request: Request, model: str) -> Response:
        if not model:
            raise HTTPException(404)
        found = {each.id: each for each in models()}
        serving.check_model(model)
        shown = _model_info(found[model]) if for_anthropic(request.scope) else found[model]
        return Response(encode(shown), media_type="application/json")

    return router


def _model_info(model: Model) -> ModelInfo:
    created = datetime.fromtimestamp(model.created, UTC).isoformat()
    length = model.max_model_len
    return ModelInfo(id=model.id, display_name=model.id, created_at=created, max_input_tokens=length, max_tokens=length)
