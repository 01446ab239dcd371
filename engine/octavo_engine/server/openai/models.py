"""GET /v1/models and /v1/models/{model}.

They answer 503 until the model can be used, since many clients use them as a readiness probe.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from octavo_engine.server.openai.answers import Model, ModelList, encode
from octavo_engine.server.serving import Serving


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints."""
    router = APIRouter()

    def models() -> list[Model]:
        length, base = serving.model().ready.max_model_len, serving.names[0]
        own = [Model(id=name, created=serving.started_at, root=base, max_model_len=length) for name in serving.names]
        adapters = serving.engine.state.adapters.values()
        return own + [
            Model(id=each.name, created=each.created, root=each.path, parent=base, max_model_len=length)
            for each in adapters
        ]

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models")
    async def list_models() -> Response:
        return Response(encode(ModelList(data=models())), media_type="application/json")

    @router.head("/v1/models/{model:path}", include_in_schema=False)
    @router.get("/v1/models/{model:path}")
    async def get_model(model: str) -> Response:
        found = {each.id: each for each in models()}
        serving.check_model(model)
        return Response(encode(found[model]), media_type="application/json")

    return router
