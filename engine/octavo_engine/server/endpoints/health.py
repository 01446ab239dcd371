"""The endpoints of the probes.

Startup says whether the model is loaded, ready whether requests should be sent here, live whether the engine runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from octavo_engine.server.serving import Serving


def _answer(healthy: bool, serving: Serving, reason: str = "") -> JSONResponse:
    state = serving.engine.state
    starts = state.phase in ("starting", "loading")
    body: dict[str, Any] = {
        "status": "ok" if healthy else reason,
        "phase": state.progress.phase if starts else state.phase,
        "detail": state.progress.detail if starts else "",
        "progress": 1.0 if state.phase == "ready" else round(state.progress.ratio, 4),
    }
    if state.ready is not None:
        reported = {"memory": state.ready.memory, "model": state.ready.model}
        body |= {name: info.as_json() for name, info in reported.items() if info is not None}
    return JSONResponse(body, 200 if healthy else 503, {"Cache-Control": "no-store"})


def _not_loaded(serving: Serving) -> str:
    return "dead" if serving.engine.state.phase == "dead" else "loading"


def silent_too_long(serving: Serving, share: float) -> bool:
    """Return True if the engine's loop or this process's own has been blocked for this share of --watchdog-timeout."""
    watchdog = serving.engine.watchdog
    return max(watchdog.silence, serving.loop_silence) > watchdog.timeout * share


def answers(serving: Serving) -> dict[str, Callable[[], JSONResponse]]:
    """Return what makes the answer to a probe, by the probe's path.

    /health/adapters is the state of the adapters of --lora-modules-file.
    """

    def startup() -> JSONResponse:
        return _answer(serving.loaded, serving, _not_loaded(serving))

    def ready() -> JSONResponse:
        if serving.draining:
            return _answer(False, serving, "draining")
        if not serving.loaded:
            return _answer(False, serving, _not_loaded(serving))
        if serving.listed_adapters is not None and serving.listed_adapters.is_awaited:
            return _answer(False, serving, "loading adapters")
        # A pod that is blocked for half of its time limit gets no new requests, as it may still recover.
        return _answer(not silent_too_long(serving, 0.5), serving, "stalled")

    def live() -> JSONResponse:
        dead = serving.engine.state.phase == "dead" or silent_too_long(serving, 1.0)
        return _answer(not dead, serving, "dead")

    def adapters() -> JSONResponse:
        listed = serving.listed_adapters
        return JSONResponse({"adapters": listed.report() if listed else []}, headers={"Cache-Control": "no-store"})

    return {
        "/health/adapters": adapters,
        "/health/startup": startup,
        "/health/ready": ready,
        "/health/live": live,
        "/health": ready,
    }


def routes(serving: Serving) -> APIRouter:
    """Return the routes of the probes.

    /ping is another name of /health, which vLLM also has. Unlike the others it needs a key if the server has keys.
    """
    router, by_path = APIRouter(), answers(serving)
    for path, answer in by_path.items():
        router.add_api_route(path, _endpoint(answer), methods=["GET", "HEAD"])
    router.add_api_route("/ping", _endpoint(by_path["/health"]), methods=["GET", "HEAD", "POST"])
    return router


def _endpoint(answer: Callable[[], JSONResponse]) -> Callable[[], Awaitable[JSONResponse]]:
    async def endpoint() -> JSONResponse:  # in the event loop; FastAPI would run a plain function in a thread
        return answer()

    return endpoint
