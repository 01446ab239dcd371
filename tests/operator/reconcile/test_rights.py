"""A right that the operator lacks is reported by name, stops no other work, and is soon checked again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from octavo_operator.reconcile.api_requests.api_error import REFUSED_SECONDS, ApiError
from octavo_operator.reconcile.api_requests.api_server import ApiServer
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.api_requests.history import HistoryLostError
from octavo_operator.reconcile.api_requests.rights import LASTING_SECONDS, MissingRights, Right, refused_right
from octavo_operator.reconcile.kinds import BY_NAME, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.watching.watched_namespaces import WatchedNamespaces, check_namespaces
from octavo_operator.render import RenderConfig
from tests.operator.api_server import CHILD, KEY, Server, reconciler
from tests.operator.reconcile.test_operator_metrics import samples

USER = 'User "system:serviceaccount:system:octavo-operator"'
SCALER = BY_NAME["HorizontalPodAutoscaler"]
SCALED = {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}


def refusal(verb: str, resource: str, group: str = "") -> ApiError:
    """Return the refusal of an API server with RBAC."""
    asks = f'{USER} cannot {verb} resource "{resource}" in API group "{group}" in the namespace "llm"'
    return ApiError(403, "Forbidden", f'{resource} "good" is forbidden: {asks}')


SENTENCES = [
    (refusal("patch", "services").message, Right("patch", "services", "llm")),
    (
        refusal("patch", "llmservices/status", "octavo.dev").message,
        Right("patch", "llmservices/status.octavo.dev", "llm"),
    ),
    (f'{USER} cannot list resource "pods" in API group "" at the cluster scope', Right("list", "pods", "*")),
    ('services "good" is forbidden: exceeded quota: one, requested: services=1, used: 1, limited: 1', None),
    ('admission webhook "deny.example.com" denied the request: you cannot patch it', None),
]


@pytest.mark.parametrize(("sentence", "right"), SENTENCES)
def test_the_missing_right_is_parsed_from_the_api_servers_message(sentence: str, right: Right | None) -> None:
    assert refused_right(sentence) == right


RULES = [
    (SENTENCES[0][0], 'add {apiGroups: [""], resources: ["services"], verbs: ["patch"]} to'),
    (SENTENCES[1][0], 'add {apiGroups: ["octavo.dev"], resources: ["llmservices/status"], verbs: ["patch"]} to'),
    (SENTENCES[3][0], ""),
]


@pytest.mark.parametrize(("sentence", "words"), RULES)
async def test_a_refusal_of_a_right_says_which_rule_gives_it(sentence: str, words: str) -> None:
    refused = web.json_response({"reason": "Forbidden", "message": sentence}, status=403)
    async with api_server(lambda _: refused) as cluster:
        with pytest.raises(ApiError) as caught:
            await cluster.get(LLMSERVICE, "llm", "good")
    assert caught.value.message.removeprefix(sentence).startswith("; helm upgrade restores") is bool(words)
    assert words in caught.value.message


DELETED = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}
TERMINATED = "unable to create new content in namespace llm because it is being terminated"


@pytest.mark.parametrize(("status", "details", "ends"), [(403, DELETED, True), (403, {}, False), (409, DELETED, False)])
async def test_only_the_api_servers_own_cause_says_that_a_namespace_is_being_deleted(
    status: int, details: dict[str, Any], ends: bool
) -> None:
    """The message of an admission webhook may have the same words."""
    answer = {"reason": "Forbidden", "message": TERMINATED, "details": details}
    async with api_server(lambda _: web.json_response(answer, status=status)) as cluster:
        with pytest.raises(ApiError) as caught:
            await cluster.get(LLMSERVICE, "llm", "good")
    assert caught.value.namespace_ends is ends


def test_rights_that_are_not_refused_any_more_are_forgotten() -> None:
    now, metrics = [0.0], OperatorMetrics()
    rights = MissingRights(lambda: now[0])
    metrics.read_rights(rights)
    rights.note(refusal("create", "deployments", "apps").message)
    rights.note("exceeded quota")
    (said,) = rights.problems
    assert said.startswith("the operator's service account may not create deployments.apps in namespace llm; helm upgr")
    assert 'add {apiGroups: ["apps"], resources: ["deployments"], verbs: ["create"]} to the operator' in said
    name = "octavo_operator_right_missing['create', 'deployments.apps', 'llm']"
    assert {each for each in samples(metrics) if each.startswith("octavo_operator_right")} == {name}
    now[0] = LASTING_SECONDS + 1
    assert rights.lately() == []
    assert LASTING_SECONDS > 1.2 * REFUSED_SECONDS


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "Service", "PodDisruptionBudget"])
async def test_a_right_to_write_one_kind_keeps_no_other_from_being_written(kind: str) -> None:
    server = Server(**SCALED, disruption={"maxUnavailable": 1})
    server.failures[kind] = refusal("create", BY_NAME[kind].plural)
    with pytest.raises(ApiError) as caught:
        await reconciler(server).reconcile(KEY)
    assert caught.value.within == REFUSED_SECONDS
    assert server.reason("Degraded") == "RightsMissing"
    assert f'cannot create resource "{BY_NAME[kind].plural}"' in server.condition("Degraded")["message"]
    others = {"Deployment", "HorizontalPodAutoscaler", "Service", "PodDisruptionBudget"} - {kind}
    assert others <= set(server.writes)


async def test_every_refused_right_is_named() -> None:
    server = Server(**SCALED, disruption={"maxUnavailable": 1})
    for kind in ("HorizontalPodAutoscaler", "PodDisruptionBudget"):
        server.failures[kind] = refusal("create", BY_NAME[kind].plural)
    with pytest.raises(ApiError):
        await reconciler(server).reconcile(KEY)
    said = server.condition("Degraded")["message"]
    assert '"horizontalpodautoscalers"' in said
    assert '"poddisruptionbudgets"' in said


DENIED = ApiError(422, "Invalid", "llmservices/status: ValidatingAdmissionPolicy 'x' denied request: no status here")


@pytest.mark.parametrize("failure", [refusal("patch", "llmservices/status", "octavo.dev"), DENIED], ids=str)
async def test_where_statuses_may_not_be_written_all_else_is_done(failure: ApiError) -> None:
    server = Server()
    server.failures["LLMService/status"] = failure
    with pytest.raises(ApiError, match="llmservices/status"):
        await reconciler(server).reconcile(KEY)
    assert {"Deployment", "Service"} <= set(server.writes)
    assert {event["reason"] for event in server.events} == {"StatusNotWritten"}
    assert failure.message in server.events[0]["note"]


def blind(server: Server, *kinds: Kind) -> Reconciler:
    """A reconciler whose operator may not list these kinds."""
    for kind in kinds:
        server.lagging.add(kind.plural)
        server.indexes.pop(kind.plural)
    unwatched = {kind: refusal("list", kind.plural).message for kind in kinds}
    return Reconciler(server, Sources(server.indexes, unwatched=lambda _: unwatched), RenderConfig("engine:1"))


async def test_an_unwatched_kind_is_asked_for_by_name_and_reported() -> None:
    server = Server(**SCALED)
    passes = blind(server, SCALER)
    assert await passes.reconcile(KEY) is not None  # it is looked at again, since no event tells
    assert server.reason("Degraded") == "RightsMissing"
    assert 'cannot list resource "horizontalpodautoscalers"' in server.condition("Degraded")["message"]
    server.writes.clear()
    await passes.reconcile(KEY)
    assert server.writes == []
    server.change("HorizontalPodAutoscaler", {"spec": {"maxReplicas": 9}})
    await passes.reconcile(KEY)
    assert server.live["HorizontalPodAutoscaler"]["spec"]["maxReplicas"] == 2


async def test_a_missing_right_that_a_service_does_not_need_does_not_degrade_it() -> None:
    server = Server()
    assert await blind(server, SCALER).reconcile(KEY) is None
    assert server.reason("Degraded") == "AsExpected"


async def test_an_unwatched_kind_that_may_not_be_asked_for_either_stops_nothing() -> None:
    class Refuses(Server):
        async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
            if kind is SCALER:
                raise refusal("get", kind.plural)
            return await super().get(kind, namespace, name)

    server = Refuses(**SCALED)
    with pytest.raises(ApiError, match="cannot get"):
        await blind(server, SCALER).reconcile(KEY)
    assert {"Deployment", "Service"} <= set(server.writes)
    assert server.reason("Degraded") == "RightsMissing"


async def test_pods_that_may_not_be_read_are_not_reported_as_not_loaded() -> None:
    """Only the Deployment says then how many there are."""
    server = Server()
    operator = blind(server, POD)
    await operator.reconcile(KEY)
    assert (server.condition("ModelLoaded")["status"], server.reason("ModelLoaded")) == ("Unknown", "RightsMissing")
    server.live["Deployment"]["status"] |= dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 1)
    server.indexes[CHILD["Deployment"].plural][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    await operator.reconcile(KEY)
    assert (server.reason("Ready"), server.service["status"]["readyReplicas"]) == ("Serving", 1)


@contextlib.asynccontextmanager
async def api_server(
    answer: Callable[[web.Request], web.Response], delay: Callable[[web.Request], Awaitable[object]] | None = None
) -> AsyncIterator[Cluster]:
    """A cluster whose API server answers so, each answer when its `delay` has ended."""

    async def handle(request: web.Request) -> web.Response:
        response = answer(request)
        if delay:
            await delay(request)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        configuration = client.Configuration(host=str(server.make_url("/")).rstrip("/"))
        configuration.retries = 0
        cluster = Cluster(ApiServer(client.ApiClient(configuration)))
        try:
            yield cluster
        finally:
            await cluster.close()


async def test_a_history_that_has_gone_back_is_noticed() -> None:
    """After a restore of etcd, watches that go on from before would report nothing for long."""
    versions = iter([700, 700, "", 900, "opaque", 650])

    def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"kind": "SelfSubjectAccessReview", "status": {"allowed": True}})
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(next(versions))}, "items": []})

    async with api_server(answer) as cluster:
        for _ in range(5):
            await cluster.probe(LLMSERVICE, "")
        with pytest.raises(HistoryLostError, match="version 650, and had 900 before"):
            await check_namespaces(cluster, WatchedNamespaces(()), (LLMSERVICE,))


async def test_answers_that_overtake_each_other_are_no_history_that_has_gone_back() -> None:
    """Several namespaces are asked at the same time: the first answer to be made may be the last to arrive."""
    versions, asked, later = iter([700, 701, 702, 650]), asyncio.Event(), asyncio.Event()

    def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"kind": "SelfSubjectAccessReview", "status": {"allowed": True}})
        asked.set()
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(next(versions))}, "items": []})

    async def delay(request: web.Request) -> None:
        if "/namespaces/first/" in request.path:
            await later.wait()

    async with api_server(answer, delay) as cluster:
        first = asyncio.create_task(cluster.probe(LLMSERVICE, "first"))
        await asked.wait()
        await cluster.probe(LLMSERVICE, "second")
        later.set()
        await first
        await cluster.probe(LLMSERVICE, "first")
        with pytest.raises(HistoryLostError, match="version 650, and had 702 before"):
            await cluster.probe(LLMSERVICE, "second")


@pytest.mark.parametrize(("status", "allowed"), [(201, True), (201, False), (403, False), (404, False)])
async def test_the_right_to_watch_is_asked_for_and_assumed_where_this_is_not_answered(
    status: int, allowed: bool
) -> None:
    def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"kind": "x", "message": "x", "status": {"allowed": allowed}}, status=status)
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": "7"}, "items": []})

    async with api_server(answer) as cluster:
        if status == 201 and not allowed:
            with pytest.raises(ApiError, match='cannot watch resource "pods"') as caught:
                await cluster.probe(POD, "llm")
            assert caught.value.status == 403
            assert cluster.server.missing_rights.lately() == [Right("watch", "pods", "llm")]
        else:
            await cluster.probe(POD, "llm")
            assert cluster.server.missing_rights.lately() == []


async def test_what_a_refused_request_lacks_is_noted() -> None:
    def answer(request: web.Request) -> web.Response:
        return web.json_response({"message": refusal("get", "pods").message}, status=403)

    async with api_server(answer) as cluster:
        with pytest.raises(ApiError):
            await cluster.get(POD, "llm", "good-1")
        assert cluster.server.missing_rights.lately() == [Right("get", "pods", "llm")]


@pytest.mark.parametrize("page", ["<html>Sign in</html>", "[]", "{}", ""])
async def test_a_page_in_the_place_of_an_answer_is_a_failure_that_passes(page: str) -> None:
    async with api_server(lambda _: web.Response(text=page)) as cluster:
        with pytest.raises(ApiError, match="something other than the API server answers") as caught:
            await cluster.get(POD, "llm", "good-1")
        assert caught.value.transient
