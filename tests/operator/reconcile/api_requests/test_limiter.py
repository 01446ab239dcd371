"""Every request but those for the Lease waits as long as the API server asks."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from octavo_operator.reconcile.api_requests.api_error import HELD_BACK, ApiError
from octavo_operator.reconcile.api_requests.api_server import ApiServer
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.api_requests.limiter import Limiter, retry_after_of
from octavo_operator.reconcile.api_requests.rights import MissingRights
from octavo_operator.reconcile.kinds import BY_NAME, LEASE

DEPLOYMENT = BY_NAME["Deployment"]


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def waited(clock: Clock, limiter: Limiter) -> list[float]:
    await limiter.wait()
    return clock.slept


async def test_an_overloaded_server_is_given_the_time_that_it_asks_for() -> None:
    clock = Clock()
    limiter = Limiter(clock, clock.sleep)
    limiter.answered(("GET", "/a"), 404)
    assert await waited(clock, limiter) == []
    limiter.answered(("GET", "/a"), 429, 7.0)
    limiter.answered(("GET", "/b"), 503)  # a shorter pause ends no longer one
    assert await waited(clock, limiter) == [7.0]
    limiter.answered(("GET", "/c"), 0)
    assert await waited(clock, limiter) == [7.0, 1.0]


async def test_who_asks_for_a_day_holds_back_its_own_request_for_a_minute_and_others_for_a_moment() -> None:
    clock, asked = Clock(), ("PATCH", "/a")
    limiter = Limiter(clock, clock.sleep)
    limiter.answered(asked, 429, retry_after_of({"Retry-After": "86400"}), "not today")
    assert await waited(clock, limiter) == [10.0]
    assert limiter.held_back(asked) == (50.0, "not today")
    assert limiter.held_back(("GET", "/a")) is None
    clock.now = 60.0
    assert limiter.held_back(asked) is None


async def test_a_request_that_is_refused_again_while_others_are_answered_holds_back_no_other() -> None:
    clock, asked = Clock(), ("PATCH", "/a")
    limiter = Limiter(clock, clock.sleep)
    limiter.answered(asked, 429, 5.0)
    assert await waited(clock, limiter) == [5.0]
    limiter.answered(("GET", "/b"), 200)
    limiter.answered(asked, 429, 5.0)
    assert await waited(clock, limiter) == [5.0]
    assert limiter.held_back(asked) == (5.0, "")
    limiter.answered(asked, 200)
    limiter.answered(asked, 429, 5.0)  # it was answered meanwhile: it may be the API server again
    assert await waited(clock, limiter) == [5.0, 5.0]


async def test_while_most_requests_are_refused_one_that_is_refused_again_holds_back_all() -> None:
    clock = Clock()
    limiter = Limiter(clock, clock.sleep)
    for path in ("/a", "/b", "/c"):
        limiter.answered(("GET", path), 429, 5.0)
    limiter.answered(("GET", "/d"), 200)
    await limiter.wait()
    limiter.answered(("GET", "/a"), 429, 5.0)
    assert await waited(clock, limiter) == [5.0, 5.0]


async def test_a_request_that_is_held_back_is_not_sent_and_keeps_no_worker() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        code = 429 if request.path == "/apis/refused" else 200
        headers = {"Retry-After": "600"} if code == 429 else {}
        return web.json_response({"kind": "Status", "message": "not this one"}, status=code, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, shutdown_timeout=0.1) as http:
        configuration = client.Configuration(host=str(http.make_url("")))
        configuration.retries = 0
        server, clock = ApiServer(client.ApiClient(configuration)), Clock()
        server.limiter = Limiter(clock, clock.sleep)
        for left in (60.0, 50.0):
            with pytest.raises(ApiError, match=r"^not this one$") as found:
                await server.write("apply", "Service", "PATCH", "/apis/refused", {})
            assert (found.value.status, found.value.at_least) == (429, left)
            assert (found.value.reason == HELD_BACK) == (left < 60)
            await server.request("GET", "/apis/other")
        await server.close()
    assert asked == ["/apis/refused", "/apis/other", "/apis/other"]
    assert clock.slept == [10.0]


def test_a_date_is_no_number_of_seconds_and_no_key_waits_for_a_day() -> None:
    texts = ("3", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "", "86400", "9" * 400)
    found = [retry_after_of({"Retry-After": text}) for text in texts]
    assert found == [3.0, None, None, None, 60.0, 60.0]


async def test_the_header_of_an_answer_holds_all_keys_back_but_not_the_lease() -> None:
    answers = [429, 200, 200]

    async def answer(_: web.Request) -> web.Response:
        code = answers.pop(0)
        headers = {"Retry-After": "5"} if code == 429 else {}
        return web.json_response({"kind": "Status", "message": "busy"}, status=code, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    configuration = client.Configuration(host=str(server.make_url("/")).rstrip("/"))
    configuration.retries = 0
    cluster, clock = Cluster(ApiServer(client.ApiClient(configuration))), Clock()
    cluster.server.limiter = Limiter(clock, clock.sleep)
    try:
        for kind, slept in ((DEPLOYMENT, []), (LEASE, []), (DEPLOYMENT, [5.0])):
            try:
                await cluster.get(kind, "llm", "good")
            except ApiError as error:
                assert (error.status, error.at_least) == (429, 5.0)
            assert clock.slept == slept
    finally:
        await cluster.close()
        await server.close()
    assert answers == []


async def test_a_request_without_an_answer_says_what_may_hang_and_holds_back_no_other() -> None:
    """A webhook that hangs for one namespace's objects is not the API server."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hang)
    async with TestServer(app, shutdown_timeout=0.1) as http:
        server = ApiServer(client.ApiClient(client.Configuration(host=str(http.make_url("")))))
        with pytest.raises(ApiError, match=r"no answer to PATCH /apis/x within 0 s.* webhook may hang") as found:
            await server.request("PATCH", "/apis/x", {}, seconds=0.1)
        assert found.value.transient
        with pytest.raises(ApiError, match=r"no answer to GET /apis/x within 0 s$"):
            await server.request("GET", "/apis/x", seconds=0.1)
        async with asyncio.timeout(0.5):
            await server.limiter.wait()
        await server.close()


DENIALS = [
    (429, 'admission webhook "policy.example.com" denied the request: too many models'),
    (409, 'admission webhook "policy.example.com" denied the request without explanation'),
    (401, "deployments.apps \"good\" is forbidden: ValidatingAdmissionPolicy 'teams' denied request: no label team"),
]


@pytest.mark.parametrize(("code", "message"), DENIALS, ids=[str(row[0]) for row in DENIALS])
async def test_a_denial_by_admission_is_no_sign_of_the_api_server_whatever_its_code(code: int, message: str) -> None:
    """A webhook or policy of one namespace chooses the code, and no request of others is held back."""

    async def deny(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": message, "reason": "x"}, status=code)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", deny)
    async with TestServer(app, shutdown_timeout=0.1) as http:
        server, clock = ApiServer(client.ApiClient(client.Configuration(host=str(http.make_url(""))))), Clock()
        server.limiter = Limiter(clock, clock.sleep)
        with pytest.raises(ApiError) as found:
            await server.request("PATCH", "/apis/x", {})
        assert (found.value.status, found.value.transient, found.value.message) == (403, False, message)
        assert await waited(clock, server.limiter) == []
        await server.close()


async def test_credentials_that_are_not_accepted_are_said() -> None:
    """As after the operator's service account was deleted and made again: its pods keep a token of the old one."""

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized"}, status=401)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with TestServer(app, shutdown_timeout=0.1) as http:
        server, clock = ApiServer(client.ApiClient(client.Configuration(host=str(http.make_url(""))))), Clock()
        server.missing_rights = MissingRights(clock)
        with pytest.raises(ApiError, match=r"^Unauthorized: .* delete the operator's pods") as found:
            await server.request("PATCH", "/apis/x", {})
        assert server.missing_rights.problems == [found.value.message]
        clock.now = 100
        assert server.missing_rights.problems == []
        await server.close()
