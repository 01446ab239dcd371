"""The two servers' paths: requests of the API server alone (TLS), and of KEDA and the kubelet (plain).

The plain one gives everyone who reaches it two numbers of each LLMService: the requests that wait and those in flight.
Where spec.networkPolicy closes the pods' own /metrics, these two are still given.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from aiohttp import web

from octavo_operator.api.names import METRICS_API, is_dns_label
from octavo_operator.metrics_api import external
from octavo_operator.metrics_api.collector import Collector, NoAnswerError
from octavo_operator.metrics_api.front_proxy import FrontProxy
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.render.scaledobject import IN_FLIGHT, WAITING, path

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CurrentFrontProxy = Callable[[], FrontProxy]
"""Returns who is admitted now: it may change at run time."""
ProblemText = Callable[[], str]
"""Returns the present problem as a sentence; an empty one if there is none."""

_ROOT = f"/apis/{METRICS_API}"


def aggregated(collector: Collector, front_proxy: CurrentFrontProxy) -> web.Application:
    """Return the application that the API server calls on behalf of autoscalers."""

    @web.middleware
    async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        if not front_proxy().admits(certificate):
            return _refused(401, "Unauthorized", "only the API server is answered, by its front-proxy certificate")
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _refused(404, "NotFound", f"there is nothing at {request.path}")

    async def values(request: web.Request) -> web.Response:
        return await _values(collector, request)

    app = web.Application(middlewares=[authenticated])
    app.add_routes(
        [
            web.get("/apis", _always(external.groups())),
            web.get(_ROOT.rpartition("/")[0], _always(external.group())),
            web.get(_ROOT, _always(external.resources())),
            web.get(_ROOT + "/namespaces/{namespace}/{metric}", values),
        ]
    )
    return app


def _always(answer: external.Object) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(answer)

    return handler


async def _values(collector: Collector, request: web.Request) -> web.Response:
    namespace, metric = _name(request, "namespace"), request.match_info["metric"]
    if metric not in external.METRICS:
        return _refused(404, "NotFound", f"there is no metric {metric}; there are {', '.join(external.METRICS)}")
    try:
        names = external.selected(request.query.get("labelSelector", ""))
        if names is None:
            names = await collector.services(namespace)
        loads = {name: await collector.load(namespace, name) for name in names}
    except external.SelectorError as error:
        return _refused(400, "BadRequest", str(error))
    except (NoAnswerError, ApiError) as error:
        return _refused(503, "ServiceUnavailable", str(error))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return web.json_response(external.value_list(metric, loads, now))


def plain(
    collector: Collector, not_ready: ProblemText, problem: ProblemText, standstill: ProblemText
) -> web.Application:
    """Return the application that KEDA calls for one LLMService, and the kubelet for probes.

    `/healthz` (readiness) answers 503 with `not_ready`; `problem`, which neither keeps it from answering nor would be
    fixed by a restart, is a line below. `/livez` answers 503 with `standstill`.
    """

    async def load(request: web.Request) -> web.Response:
        try:
            found = await collector.load(_name(request, "namespace"), _name(request, "name"))
        except (NoAnswerError, ApiError) as error:
            return web.json_response({"error": str(error)}, status=503)
        return web.json_response({WAITING: found.waiting, IN_FLIGHT: found.in_flight})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", _unless(not_ready, problem)),
            web.get("/livez", _unless(standstill, lambda: "")),
            web.get(path("{namespace}", "{name}"), load),
        ]
    )
    return app


def _unless(problem: ProblemText, remark: ProblemText) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        sentence = problem()
        lines = filter(None, [sentence or "ok", "" if sentence else remark()])
        return web.Response(status=503 if sentence else 200, text="".join(f"{line}\n" for line in lines))

    return handler


def _name(request: web.Request, part: str) -> str:
    """Return a part of the path, decoded, which may be a name; HTTPNotFound where nothing can be called so."""
    text = request.match_info[part]
    if not is_dns_label(text):
        raise web.HTTPNotFound
    return text


def _refused(code: int, reason: str, message: str) -> web.Response:
    text = json.dumps(external.refusal(code, reason, message))
    return web.Response(status=code, text=text, content_type="application/json")
