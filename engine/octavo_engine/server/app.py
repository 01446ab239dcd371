"""The HTTP application: the routes, and the middleware around them."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Scope

from octavo_engine import __version__
from octavo_engine.server.admission.pacer import Pacer
from octavo_engine.server.admission.paths import OPEN_PATHS
from octavo_engine.server.admission.refusal import RefusedError
from octavo_engine.server.anthropic import messages
from octavo_engine.server.cross_origin import with_cross_origin
from octavo_engine.server.endpoints import adapters, health, models, playground, tokenize
from octavo_engine.server.endpoints.openapi import add_document
from octavo_engine.server.error_responses import error_response, from_http
from octavo_engine.server.errors import APIError, internal_error
from octavo_engine.server.middleware.authentication import BEGUN_AT_ONCE, Authentication, PacedPreflights
from octavo_engine.server.middleware.body_limit import BodyLimit
from octavo_engine.server.middleware.metering import Metering
from octavo_engine.server.middleware.request_context import RequestContext
from octavo_engine.server.openai import chat, completions
from octavo_engine.server.openai.batches import routes
from octavo_engine.server.openai.batches.batches import Batches
from octavo_engine.server.openai.batches.line_answers import LineAnswers
from octavo_engine.server.openai.batches.routes import FILES
from octavo_engine.server.openai.batches.storage import Storage
from octavo_engine.server.openai.responses import responses
from octavo_engine.server.pooling import classes, embeddings, scores
from octavo_engine.server.serving import Serving
from octavo_engine.server.telemetry.scrape_page import ScrapePage


@dataclass(frozen=True, slots=True)
class Application:
    """The ASGI application, and the batches that call it. `batches` is None without --batch-storage."""

    serve: ASGIApp
    batches: Batches | None


def create_app(serving: Serving, storage: Storage | None = None) -> Application:
    """Build the application, which can be served before the model is loaded. Without `storage` there are no batches."""
    app = FastAPI(
        title="Octavo", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    for module in (adapters, tokenize, chat, completions, responses, messages, models, embeddings, scores, classes):
        app.include_router(module.routes(serving))
    batches = Batches(storage, LineAnswers(serving, app)) if storage is not None else None
    app.include_router(routes.routes(batches, serving.unread))
    _add_probes(app, serving, metrics=serving.config.metrics_port is None)

    open_paths = OPEN_PATHS
    if serving.config.playground:
        files = playground.read_files()
        app.include_router(playground.routes(files))
        open_paths |= {"/", *files}

    @app.head("/version", include_in_schema=False)
    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.head("/load", include_in_schema=False)
    @app.get("/load")
    async def load() -> dict[str, int]:
        """Return how many requests are being answered, in vLLM's shape."""
        return {"server_load": len(serving.running)}

    add_document(app)
    _answer_errors(app, serving)
    streamed = frozenset({FILES} if batches is not None else ())
    limited = BodyLimit(app, serving.config.max_request_bytes, serving.uploads, streamed)
    metered = Metering(limited, open_paths, serving.arrive, serving.admission.headers_of)
    pacer = Pacer(BEGUN_AT_ONCE)
    guarded = Authentication(metered, serving.keys, open_paths, lambda: serving.metrics.reject("unauthorized"), pacer)
    context = RequestContext(guarded, serving.hide_keys, serving.metrics.reject, serving.tracing)
    return Application(PacedPreflights(with_cross_origin(context, serving.config), pacer), batches)


def create_probes(serving: Serving) -> ASGIApp:
    """Build the application of the acceptor's thread, which answers only probes and metrics."""
    app = FastAPI(title="Octavo", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_probes(app, serving, metrics=True)
    _answer_errors(app, serving)
    return RequestContext(app, serving.hide_keys, serving.metrics.reject)


def _add_probes(app: FastAPI, serving: Serving, *, metrics: bool) -> None:
    app.include_router(health.routes(serving), include_in_schema=False)

    page = ScrapePage(serving.metrics.render)

    async def scrape() -> Response:
        return Response(page.read(), media_type="text/plain; version=0.0.4; charset=utf-8")

    if metrics:
        app.add_api_route("/metrics", scrape, methods=["GET", "HEAD"], include_in_schema=False)


def _methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods that the routes of a path accept."""
    routes = app.routes
    return [
        method
        for method in ("GET", "HEAD", "POST", "DELETE")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _where(app: FastAPI, scope: Scope) -> str | None:
    """Return where the path is that a client meant with a slash too many, or with a /v1 too few or too many."""
    path = scope["path"].rstrip("/")
    if _methods_of(app, {**scope, "path": path}):
        return f"it is at {path}, without a slash at the end"
    meant = path.removeprefix("/v1") if path.startswith("/v1/v1/") else f"/v1{path}"
    if not _methods_of(app, {**scope, "path": meant}):
        return None
    about = "the base URL of an SDK for OpenAI's API ends with /v1, and of one for Anthropic's before it"
    return f"it is at {meant}: {about}"


def _answer_errors(app: FastAPI, serving: Serving) -> None:
    """Install the exception handlers, so that every error is answered in the shape of OpenAI's errors."""

    @app.exception_handler(APIError)
    async def api_error(request: Request, error: APIError) -> Response:
        if isinstance(error, RefusedError):
            serving.metrics.reject(error.reason)
        elif error.status < 500:
            serving.metrics.reject("invalid")
        request.state.error = error  # for lines of batches, whose requests come from within this process
        return error_response(error, request.scope)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        refused = from_http(error, request)
        if refused.status == 405:
            refused.headers["Allow"] = ", ".join(_methods_of(app, request.scope))
        if refused.status == 404 and (where := _where(app, request.scope)) is not None:
            refused = APIError(404, f"{refused.detail.message}; {where}", code=refused.detail.code)
        return error_response(refused, request.scope)

    @app.exception_handler(Exception)  # Starlette raises it again after this answer, and RequestContext logs it
    async def defect(request: Request, _: Exception) -> Response:
        return error_response(internal_error(request.state.request_id), request.scope)
