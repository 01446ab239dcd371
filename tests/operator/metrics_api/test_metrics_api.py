"""The metrics API: reliable numbers or an error, only for the API server, over TLS that it trusts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from yarl import URL

from octavo_engine.engine.client import EngineState
from octavo_engine.server.telemetry.metrics import Metrics
from octavo_operator.api.names import METRICS_API_SERVICE, pod_labels
from octavo_operator.metrics_api import collector as collecting
from octavo_operator.metrics_api import serve
from octavo_operator.metrics_api.app import aggregated, plain
from octavo_operator.metrics_api.certificates import Authority
from octavo_operator.metrics_api.collector import Collector, NoAnswerError, ScrapeError
from octavo_operator.metrics_api.external import SelectorError, selected
from octavo_operator.metrics_api.front_proxy import FrontProxy, NoAggregationError
from octavo_operator.metrics_api.load import Load, NoMetricsError, parse
from octavo_operator.metrics_api.pods import EnginePod, engine_pod, list_engine_pods
from octavo_operator.metrics_api.registration import FAILED_SECONDS, Registration
from octavo_operator.metrics_api.scrape import Scraper
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.api_requests.server_clock import ServerClock
from octavo_operator.reconcile.kinds import POD, Kind
from tests.cluster import pki

HOST = "metrics.octavo-system.svc"
Ask = Callable[[str], Awaitable[tuple[int, str]]]


def metrics(waiting: float, running: float, model: str = "m") -> str:
    label = f'{{model_name="{model}"}}'
    return f"# TYPE octavo_requests_waiting gauge\noctavo_requests_waiting{label} {waiting}\n" + (
        f"octavo_requests_waiting_other{label} 99\noctavo_requests_running{label} {running}\n"
    )


def test_what_a_real_engine_shows_is_understood() -> None:
    assert parse(Metrics("m", EngineState, lambda: 0).render().decode()) == Load(0, 0)


def test_loads_of_all_models_of_a_pod_count() -> None:
    assert parse(metrics(3, 2) + metrics(1, 0, "other")) == Load(4, 2)


WRONG = [
    ("", "has no octavo_requests_waiting and no octavo_requests_running"),
    ("octavo_requests_waiting 1\n", "has no octavo_requests_running"),
    (metrics(float("nan"), 1), "impossible numbers"),
    (metrics(1.7e308, 1), "impossible numbers"),  # twice as many are infinitely many, and an error of all arithmetic
    (metrics(-1, 1), "impossible numbers"),
    ("octavo_requests_waiting{ 1\n", "cannot be read"),
    ('octavo_requests_waiting{model_name="b",\t="y"} 2e3 # aa="b"} 1\n', "cannot be read"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_text_that_is_no_load_is_refused(text: str, words: str) -> None:
    with pytest.raises(NoMetricsError, match=words):
        parse(text)


def pod(name: str = "a", *, ready: bool = True, ending: bool = False, service: str = "model") -> EnginePod:
    return EnginePod(f"uid-{name}", name, service, f"http://{name}", ready, ending)


class World:
    """Pods that answer or not, and a clock that stands until it is moved."""

    def __init__(self, *pods: EnginePod) -> None:
        self.pods = list(pods)
        self.loads: dict[str, Load | ScrapeError] = {each.name: Load(1, 2) for each in pods}
        self.now = 1000.0
        self.scrapes = 0
        self.lists = 0
        self.collector = Collector(self.list_pods, self.scrape, lambda: self.now)

    async def list_pods(self, namespace: str) -> list[EnginePod]:
        self.lists += 1
        return list(self.pods)

    async def scrape(self, pod: EnginePod) -> Load:
        self.scrapes += 1
        answer = self.loads[pod.name]
        if isinstance(answer, ScrapeError):
            raise answer
        return answer

    async def load(self) -> Load:
        return await self.collector.load("llm", "model")

    async def refusal(self) -> str:
        with pytest.raises(NoAnswerError) as refused:
            await self.load()
        return str(refused.value)


SILENT = ScrapeError("its /metrics does not answer within 2 s")


async def test_the_load_is_that_of_all_pods_of_the_service_and_of_no_other() -> None:
    assert await World(pod("a"), pod("b"), pod("c", service="other")).load() == Load(2, 4)


async def test_pods_that_start_or_drain_count_too() -> None:
    world = World(pod("a"), pod("starts", ready=False), pod("drains", ready=False))
    world.loads |= {"starts": SILENT, "drains": Load(0, 5)}
    assert await world.load() == Load(1, 7)


async def test_both_metrics_of_an_autoscaler_cost_one_round() -> None:
    world = World(pod())
    await world.load()
    await world.load()
    assert (world.scrapes, world.lists) == (1, 1)
    world.now += collecting.FRESH_SECONDS + 1
    world.loads["a"] = Load(7, 7)
    assert await world.load() == Load(7, 7)


async def test_a_pod_that_falls_silent_counts_as_before_for_a_while_and_then_there_is_no_number() -> None:
    world = World(pod("a"), pod("b"))
    await world.load()
    world.loads["b"] = SILENT
    world.now += collecting.STALE_SECONDS
    assert await world.load() == Load(2, 4)
    world.now += collecting.FRESH_SECONDS + 1
    assert await world.refusal() == f"pod b of LLMService llm/model does not report its load: {SILENT}"
    world.loads["b"] = Load(0, 0)
    world.now += collecting.FRESH_SECONDS + 1
    assert await world.load() == Load(1, 2)


async def test_a_pod_that_falls_silent_with_requests_is_overloaded_and_not_idle() -> None:
    world = World(pod("a"), pod("b"))
    await world.load()
    world.loads["b"] = SILENT
    world.pods[1] = pod("b", ready=False)
    world.now += collecting.STALE_SECONDS + 1
    assert await world.refusal() == f"pod b of LLMService llm/model does not report its load: {SILENT}"
    world.now += collecting.BUSY_SECONDS
    assert await world.load() == Load(1, 2)


@pytest.mark.parametrize(("before", "ending"), [(Load(0, 0), False), (Load(1, 2), True)])
async def test_a_silent_pod_that_had_no_requests_or_is_being_deleted_has_none(before: Load, ending: bool) -> None:
    world = World(pod("a"), pod("b"))
    world.loads["b"] = before
    await world.load()
    world.loads["b"] = SILENT
    world.pods[1] = pod("b", ready=False, ending=ending)
    world.now += collecting.STALE_SECONDS + 1
    assert await world.load() == Load(1, 2)


async def test_namespaces_without_questions_are_forgotten() -> None:
    world = World(pod())
    await world.load()
    for number in range(50):
        world.now += collecting.LIST_SECONDS + 1
        await world.load()  # this one is kept
        world.pods, kept = [], world.pods
        await world.collector.services(f"nobody-{number}")
        world.pods = kept
    assert len(world.collector._namespaces) <= 2
    for number in range(3):
        await world.collector.services(f"some-{number}")
    world.now += collecting.KEEP_SECONDS + 1
    await world.collector.services("another")
    assert set(world.collector._namespaces) == {"another"}


async def test_namespaces_without_pods_cost_few_api_requests_however_many_are_asked_about() -> None:
    world = World(pod())
    await world.load()
    world.pods, kept = [], world.pods
    with pytest.raises(NoAnswerError, match="more than 100 such namespaces a second"):
        for number in range(1000):
            await world.collector.services(f"nobody-{number}")
    assert world.lists <= 2 + collecting.UNKNOWN_A_SECOND
    world.pods = kept
    world.now += collecting.LIST_SECONDS + 1
    world.collector._unknown.note(None)  # a namespace whose pods are known is none of them
    lists = world.lists
    assert await world.load() == Load(1, 2)
    assert world.lists == lists + 1


async def test_a_namespace_that_is_scaled_to_zero_is_read_however_many_others_are_asked_about() -> None:
    world = World(pod())
    await world.load()
    world.pods, kept = [], world.pods
    world.now += collecting.LIST_SECONDS + 1
    assert await world.refusal() == "no pod of LLMService llm/model is running"
    world.now += collecting.KEEP_SECONDS
    with pytest.raises(NoAnswerError, match="more than 100 such namespaces a second"):
        for number in range(1000):
            await world.collector.services(f"nobody-{number}")
    world.pods = kept
    assert await world.load() == Load(1, 2)


async def test_a_pod_that_is_gone_counts_no_more() -> None:
    world = World(pod("a"), pod("b"))
    await world.load()
    del world.pods[1]
    world.now += collecting.LIST_SECONDS + 1
    assert await world.load() == Load(1, 2)


async def test_no_pod_is_no_number() -> None:
    assert await World().refusal() == "no pod of LLMService llm/model is running"
    world = World(pod(ready=False))
    world.loads["a"] = SILENT
    assert "reports its load: its /metrics does not answer" in await world.refusal()


def live_pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": "u", "labels": pod_labels("model")},
        "status": {
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "engine", "state": {"running": {}}}],
            **status,
        },
    }


def test_only_pods_in_which_an_engine_runs_are_asked() -> None:
    assert engine_pod(live_pod()) == EnginePod("u", "p", "model", "http://10.0.0.7:8000/metrics", True)
    loading = engine_pod(live_pod(conditions=[{"type": "Ready", "status": "False"}]))
    assert loading is not None and not loading.ready
    six = engine_pod(live_pod(podIP="fd00::7"))
    assert six is not None and six.url == "http://[fd00::7]:8000/metrics"
    ending = engine_pod({**live_pod(), "metadata": {**live_pod()["metadata"], "deletionTimestamp": "now"}})
    assert ending is not None and ending.ending
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    on_lost_node = engine_pod(live_pod(conditions=conditions))
    assert on_lost_node is not None and (on_lost_node.ready, on_lost_node.ending) == (False, True)
    overloaded = engine_pod(live_pod(conditions=[{**each, "status": "False"} for each in conditions]))
    assert overloaded is not None and not overloaded.ending
    assert engine_pod(live_pod(podIP="")) is None
    assert engine_pod(live_pod(containerStatuses=[{"name": "engine", "state": {"waiting": {}}}])) is None
    assert engine_pod({**live_pod(), "metadata": {"name": "p", "uid": "u"}}) is None


async def test_pods_that_ended_are_not_even_listed() -> None:
    """A node with a broken device may refuse thousands of pods, which the cluster keeps."""

    async def listed(kind: Kind, namespace: str, *, fields: str) -> list[Any]:
        assert (kind, namespace, fields) == (POD, "llm", "status.phase!=Failed,status.phase!=Succeeded")
        return [live_pod(), live_pod(podIP="")]

    cluster = cast(Cluster, type("Fake", (), {"list_selected": staticmethod(listed)}))
    assert [each.uid for each in await list_engine_pods(cluster, "llm")] == ["u"]


SELECTORS = [
    ("", None),
    ("llmservice=a", ["a"]),
    ("llmservice==a", ["a"]),
    ("llmservice in (b, a)", ["a", "b"]),
    (" llmservice=a ", ["a"]),
]


@pytest.mark.parametrize(("text", "names"), SELECTORS)
def test_label_selectors(text: str, names: list[str] | None) -> None:
    assert selected(text) == names


@pytest.mark.parametrize("text", ["llmservice!=a", "pod=a", "llmservice=a,pod=b", "llmservice", "llmservice in ()"])
def test_a_selector_that_is_not_understood_selects_nothing(text: str) -> None:
    with pytest.raises(SelectorError, match="llmservice=NAME"):
        selected(text)


class Server:
    """The API served over TLS on loopback, for clients of a cluster's authority."""

    def __init__(self, folder: Path, world: World) -> None:
        self.authority = pki.Authority(folder / "cluster")
        self.authority.issue("proxy", "front-proxy")
        self.authority.issue("admin", "admin", group="system:masters")
        self.folder = self.authority.folder
        self.untrusted = pki.Authority(folder / "untrusted")
        self.untrusted.issue("proxy", "front-proxy")
        names = frozenset({"front-proxy"})
        self.front_proxy = FrontProxy((self.folder / "ca.crt").read_text(), names)
        self.context = self.front_proxy.context()
        self.own = Authority((HOST,), lambda: datetime.now(UTC))
        self.own.serve_with(self.context)
        self.runner = web.AppRunner(aggregated(world.collector, lambda: self.front_proxy))
        self.port = 0

    async def start(self) -> None:
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=self.context)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def get(self, path: str, client: Path | None, **query: str) -> tuple[int, dict[str, Any]]:
        context = ssl.create_default_context(cadata=self.own.pem.decode())
        if client:
            context.load_cert_chain(client.with_suffix(".crt"), client.with_suffix(".key"))
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"https://127.0.0.1:{self.port}{path}", params=query, ssl=context, server_hostname=HOST
            ) as response,
        ):
            return response.status, await response.json()


@pytest.fixture
async def world() -> World:
    return World(pod("a"), pod("b"), pod("c", service="other"))


@pytest.fixture
async def server(tmp_path: Path, world: World) -> AsyncIterator[Server]:
    server = Server(tmp_path, world)
    await server.start()
    yield server
    await server.runner.cleanup()


ROOT = "/apis/external.metrics.k8s.io/v1beta1"
WAITING = f"{ROOT}/namespaces/llm/octavo_requests_waiting"


async def test_only_the_api_server_is_answered(server: Server) -> None:
    for client in (None, server.folder / "admin"):  # the second is signed by the same authority for another user
        status, answer = await server.get(WAITING, client, labelSelector="llmservice=model")
        assert (status, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized")
    with pytest.raises((aiohttp.ClientError, ConnectionError, ssl.SSLError)):
        await server.get(WAITING, server.untrusted.folder / "proxy", labelSelector="llmservice=model")
    status, _ = await server.get(WAITING, server.folder / "proxy", labelSelector="llmservice=model")
    assert status == 200


async def test_values(server: Server) -> None:
    proxy = server.folder / "proxy"
    _, answer = await server.get(WAITING, proxy, labelSelector="llmservice=model")
    (item,) = answer["items"]
    assert (answer["kind"], answer["apiVersion"]) == ("ExternalMetricValueList", "external.metrics.k8s.io/v1beta1")
    assert (item["metricName"], item["metricLabels"], item["value"]) == (
        "octavo_requests_waiting",
        {"llmservice": "model"},
        "2",
    )
    in_flight = WAITING.replace("waiting", "in_flight")
    _, answer = await server.get(in_flight, proxy, labelSelector="llmservice=model")
    assert [item["value"] for item in answer["items"]] == ["6"]
    _, answer = await server.get(WAITING, proxy)
    assert [item["metricLabels"]["llmservice"] for item in answer["items"]] == ["model", "other"]


async def test_discovery_and_what_is_not_there(server: Server) -> None:
    proxy = server.folder / "proxy"
    _, found = await server.get(ROOT, proxy)
    assert [resource["name"] for resource in found["resources"]] == [
        "octavo_requests_waiting",
        "octavo_requests_in_flight",
    ]
    for path, query, expected in (
        (f"{ROOT}/namespaces/llm/no_such", {}, (404, "NotFound")),
        ("/nowhere", {}, (404, "NotFound")),
        (WAITING, {"labelSelector": "pod=a"}, (400, "BadRequest")),
        (WAITING, {"labelSelector": "llmservice=unknown"}, (503, "ServiceUnavailable")),
    ):
        status, answer = await server.get(path, proxy, **query)
        assert (status, answer["reason"]) == expected
        assert answer["message"]


async def test_one_service_without_a_number_is_an_error_and_no_zero(server: Server, world: World) -> None:
    world.loads["b"] = SILENT
    status, answer = await server.get(WAITING, server.folder / "proxy", labelSelector="llmservice=model")
    assert (status, answer["message"]) == (503, f"pod b of LLMService llm/model does not report its load: {SILENT}")


async def test_a_renewed_certificate_is_shown_at_once_and_trusted(server: Server) -> None:
    async def serial() -> Any:
        context = ssl.create_default_context(cadata=server.own.pem.decode())
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=HOST)
        certificate = writer.get_extra_info("peercert")
        writer.close()
        return certificate["serialNumber"]

    before = await serial()
    server.own.serve_with(server.context)
    assert await serial() != before


def test_the_config_map_says_which_client_is_admitted() -> None:
    data = {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": '["front-proxy"]'}
    assert FrontProxy.of({"data": data}) == FrontProxy("PEM", frozenset({"front-proxy"}))
    anyone = FrontProxy.of({"data": {**data, "requestheader-allowed-names": "[]"}})
    assert anyone.admits({"subject": ((("commonName", "any-client"),),)})
    assert not anyone.admits({})
    with pytest.raises(NoAggregationError, match="--requestheader-client-ca-file"):
        FrontProxy.of(None)
    for names in ("front-proxy", '""', "{}", '"abc"', "[1]"):  # an empty list would admit anyone
        with pytest.raises(NoAggregationError, match="delete the ConfigMap"):
            FrontProxy.of({"data": {**data, "requestheader-allowed-names": names}})


class FrontProxyMap:
    """An API server that says who it is by `front_proxy` (None: its ConfigMap is gone), and has no APIService."""

    def __init__(self, front_proxy: FrontProxy) -> None:
        self.front_proxy: FrontProxy | None = front_proxy
        self.server, self.clock = self, ServerClock()  # a Cluster and its ApiServer in one
        self.asked = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.name != "ConfigMap":
            return None
        self.asked += 1
        if self.front_proxy is None:
            return None
        names = json.dumps(sorted(self.front_proxy.names))
        data = {"requestheader-client-ca-file": self.front_proxy.authority, "requestheader-allowed-names": names}
        return {"data": data}


async def test_a_former_authority_is_trusted_no_longer_than_until_a_new_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_FRONT_PROXY_SECONDS", 0.01)
    first, second = ((pki.Authority(tmp_path / name).folder / "ca.crt").read_text() for name in ("first", "second"))
    api = FrontProxyMap(FrontProxy(first, frozenset({"a"})))
    options = serve.MetricsApiOptions("octavo-system", "metrics", tls_port=0, port=0)
    scraper = Scraper()
    async with asyncio.timeout(120):
        serving = asyncio.create_task(serve._serve(options, cast(Cluster, api), scraper, asyncio.Event()))
        for front_proxy in (FrontProxy(first, frozenset({"b"})), None):  # other names, or none for now: it goes on
            api.front_proxy, until = front_proxy, api.asked + 4
            while api.asked < until:
                await asyncio.sleep(0.01)
                assert not serving.done()
        api.front_proxy = FrontProxy(second, frozenset({"b"}))
        with pytest.raises(serve.AuthorityChangedError, match="authority has changed"):
            await serving
        await scraper.close()


def test_changed_names_of_the_front_proxy_are_admitted_at_once(tmp_path: Path) -> None:
    authority = (pki.Authority(tmp_path / "ca").folder / "ca.crt").read_text()
    clients = serve.Clients(FrontProxy(authority, frozenset({"a"})))
    clients.change(FrontProxy(authority, frozenset({"b"})))
    assert clients.front_proxy.names == {"b"}


class Registry:
    """An API server with one APIService, or none."""

    def __init__(self, spec: dict[str, Any] | None) -> None:
        self.spec = spec
        self.status: dict[str, Any] = {}
        self.writes = 0
        self.failure: ApiError | None = None

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if self.failure:
            raise self.failure
        assert (kind.path(namespace, name)) == f"/apis/apiregistration.k8s.io/v1/apiservices/{METRICS_API_SERVICE}"
        metadata = {"resourceVersion": str(self.writes)}
        live = {"metadata": metadata, "spec": copy.deepcopy(self.spec), "status": self.status}
        return None if self.spec is None else live

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Any) -> None:
        assert self.spec is not None
        if patch["metadata"]["resourceVersion"] != str(self.writes):
            raise ApiError(409, "Conflict", "it has changed")
        self.spec.update(patch["spec"])
        self.writes += 1

    async def apply_cluster_wide(self, kind: Kind, manifest: dict[str, Any]) -> None:
        assert manifest["metadata"]["name"] == METRICS_API_SERVICE
        self.spec = manifest["spec"]
        self.writes += 1


async def test_the_api_service_gets_each_authority_once() -> None:
    registry = Registry({"service": {"namespace": "octavo-system", "name": "metrics", "port": 443}})
    registration = Registration(registry, "octavo-system", "metrics", pem(1))
    assert "not looked" in registration.not_trusted()
    for _ in range(3):
        assert await registration.check() == "serves external.metrics.k8s.io/v1beta1"
    assert registry.spec is not None
    assert (registry.writes, registry.spec["caBundle"]) == (1, base64.b64encode(pem(1)).decode())
    assert registration.not_trusted() == ""
    registry.spec["caBundle"] = "overwritten"
    await registration.check()
    assert registry.writes == 2


def pem(number: int) -> bytes:
    return f"-----BEGIN CERTIFICATE-----\n{number}\n-----END CERTIFICATE-----\n".encode()


async def test_the_ca_bundle_has_the_last_eight_replicas_certificates() -> None:
    registry = Registry({"service": {"namespace": "octavo-system", "name": "metrics"}})
    replicas = [Registration(registry, "octavo-system", "metrics", pem(number)) for number in range(10)]
    for replica in replicas:
        await replica.check()
    assert registry.spec is not None
    assert base64.b64decode(registry.spec["caBundle"]) == b"".join(map(pem, range(2, 10)))
    for replica in replicas[2:]:
        await replica.check()
    assert registry.writes == 10


async def test_an_api_service_that_was_deleted_is_made_by_a_replica_that_starts_or_after_a_while() -> None:
    now = [0.0]
    registry = Registry({"service": {"namespace": "octavo-system", "name": "metrics"}})
    before = Registration(registry, "octavo-system", "metrics", pem(1), True, lambda: now[0])
    await before.check()
    registry.spec = None
    assert "it is created again after 300 s" in await before.check()
    fresh = Registration(registry, "octavo-system", "metrics", pem(2), True, lambda: now[0])
    assert "created APIService" in await fresh.check()
    assert await fresh.check() == "serves external.metrics.k8s.io/v1beta1"
    assert registry.spec is not None
    assert registry.spec["service"] == {"namespace": "octavo-system", "name": "metrics", "port": 443}
    await before.check()
    registry.spec, now[0] = None, 300.0
    assert "created APIService" in await before.check()
    registry.spec = None
    asked_for_none = Registration(registry, "octavo-system", "metrics", pem(3))
    assert "there is no APIService" in await asked_for_none.check()
    assert registry.spec is None


async def test_a_replica_that_starts_just_before_the_api_service_is_deleted_makes_it_again_at_once_but_once() -> None:
    now = [0.0]
    registry = Registry({"service": {"namespace": "octavo-system", "name": "metrics"}})
    registry.status = {"conditions": [{"type": "Available", "status": "False"}]}
    replica = Registration(registry, "octavo-system", "metrics", pem(1), True, lambda: now[0])
    await replica.check()
    registry.spec = None
    assert "created APIService" in await replica.check()
    await replica.check()
    registry.spec, now[0] = None, 40.0  # it was not reached at all
    assert "it is created again after 300 s" in await replica.check()


async def test_of_two_replicas_that_create_the_api_service_at_once_both_are_trusted_before_they_are_ready() -> None:
    registry = Registry(None)
    one, two = (Registration(registry, "octavo-system", "metrics", pem(number), True) for number in (1, 2))
    await one.check()
    registry.spec = None  # as the second saw it
    await two.check()
    assert "created APIService" in one.not_trusted()
    await one.check()
    await two.check()
    assert registry.spec is not None
    assert base64.b64decode(registry.spec["caBundle"]) == pem(2) + pem(1)
    assert one.not_trusted() == two.not_trusted() == ""


async def test_an_api_service_of_another_server_is_left_alone() -> None:
    registry = Registry({"service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"}})
    registration = Registration(registry, "octavo-system", "metrics", b"PEM")
    assert "is served by keda/keda-operator-metrics-apiserver" in await registration.check()
    registry.spec = None
    assert "there is no APIService" in await registration.check()
    registry.failure = ApiError(403, "Forbidden", "may not")
    assert "may not" in await registration.check()
    assert registry.writes == 0


async def test_a_registration_that_fails_for_minutes_is_reported_and_one_that_stands_still_too() -> None:
    registry, now = Registry({"service": {"namespace": "octavo-system", "name": "metrics"}}), [0.0]
    registration = Registration(registry, "octavo-system", "metrics", b"PEM", clock=lambda: now[0])
    await registration.check()
    registry.failure = ApiError(403, "Forbidden", "may not")
    now[0] = FAILED_SECONDS
    await registration.check()
    assert registration.problem() == ""
    now[0] += 1
    await registration.check()
    assert registration.problem() == "for 121 s: cannot register for external.metrics.k8s.io/v1beta1: may not"
    assert registration.standstill() == ""
    registry.failure = None
    await registration.check()
    assert registration.problem() == ""
    now[0] += FAILED_SECONDS + 1
    assert registration.standstill() == "has not looked at its APIService for 121 s"


async def test_pods_that_keep_one_waiting_redirect_or_talk_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_operator.metrics_api.scrape.TIMEOUT_SECONDS", 120.0)
    monkeypatch.setattr("octavo_operator.metrics_api.scrape.MOST_BYTES", 1 << 20)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    async def hangs(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    async def answers(_: web.Request) -> web.Response:
        return web.Response(text=metrics(3, 1))

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("/answers")

    app = web.Application()
    app.add_routes([web.get(f"/{each.__name__}", each) for each in (endless, hangs, answers, elsewhere)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    scraper = Scraper()
    monkeypatch.setattr("octavo_operator.metrics_api.scrape.TIMEOUT_SECONDS", 0.1)
    hasty = Scraper()
    try:
        assert await scraper.scrape(EnginePod("u", "p", "s", f"{root}/answers", True)) == Load(3, 1)
        with pytest.raises(ScrapeError, match="does not answer within"):
            await hasty.scrape(EnginePod("u", "p", "s", f"{root}/hangs", True))
        for path, words in (
            ("endless", "larger than 1 MiB"),
            ("elsewhere", "answers 302"),
            ("nothing", "answers 404"),
        ):
            with pytest.raises(ScrapeError, match=words):
                await scraper.scrape(EnginePod("u", "p", "s", f"{root}/{path}", True))
        with pytest.raises(ScrapeError, match="cannot be reached"):
            await scraper.scrape(EnginePod("u", "p", "s", "http://127.0.0.1:1/metrics", True))
    finally:
        await hasty.close()
        await scraper.close()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def plain_server(
    world: World, problem: str = "", standstill: str = "", not_ready: str = ""
) -> AsyncIterator[Ask]:
    """The plain port on loopback; what is asked of it goes out as it is written."""
    runner = web.AppRunner(plain(world.collector, lambda: not_ready, lambda: problem, lambda: standstill))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def ask(path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(URL(root + path, encoded=True)) as response:
            return response.status, await response.text()

    try:
        yield ask
    finally:
        await runner.cleanup()


async def test_keda_gets_the_same_numbers_or_an_error(world: World) -> None:
    async with plain_server(world) as ask:
        status, text = await ask("/namespaces/llm/llmservices/model")
        assert (status, json.loads(text)) == (200, {"waiting": 2, "inFlight": 6})
        status, _ = await ask("/namespaces/llm/llmservices/unknown")
        assert status == 503


NO_NAMES = ["%2E%2E", "..", "%2e", "a%2Fb", "..%2F..%2Fapi", "A", "-a", "a" * 64, "a%0A", "%C3%A4", "a.b"]


@pytest.mark.parametrize("name", NO_NAMES)
async def test_what_is_no_name_is_not_found_and_asks_the_cluster_nothing(name: str, world: World) -> None:
    async with plain_server(world) as ask:
        for path in (f"/namespaces/{name}/llmservices/x", f"/namespaces/llm/llmservices/{name}"):
            status, _ = await ask(path)
            assert (status, world.lists) == (404, 0)


async def test_the_api_server_too_gets_names_only(server: Server, world: World) -> None:
    path = URL(f"{ROOT}/namespaces/a%2Fb/octavo_requests_waiting", encoded=True).raw_path
    status, answer = await server.get(path, server.folder / "proxy", labelSelector="llmservice=model")
    assert (status, answer["reason"], world.lists) == (404, "NotFound", 0)


def test_a_name_leads_to_no_other_path() -> None:
    assert POD.path("a/b", "c?d") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd"
    for namespace, name in (("..", "x"), ("a", ".")):
        with pytest.raises(ValueError, match="cannot be the name"):
            POD.path(namespace, name)


async def test_health_is_whether_it_is_registered_and_life_is_whether_it_tries(world: World) -> None:
    async with plain_server(world) as ask:
        assert (await ask("/healthz"), await ask("/livez")) == ((200, "ok\n"), (200, "ok\n"))
    async with plain_server(world, problem="may not") as ask:
        assert (await ask("/healthz"), await ask("/livez")) == ((200, "ok\nmay not\n"), (200, "ok\n"))
    async with plain_server(world, not_ready="not trusted") as ask:
        assert (await ask("/healthz"), await ask("/livez")) == ((503, "not trusted\n"), (200, "ok\n"))
    async with plain_server(world, standstill="sleeps") as ask:
        assert await ask("/livez") == (503, "sleeps\n")


def test_certificates_are_of_the_api_servers_time(tmp_path: Path) -> None:
    """It judges them; a node's clock may be wrong by more than a certificate lives."""
    then = datetime(2026, 1, 1, 12, tzinfo=UTC)
    authority = Authority((HOST,), lambda: then)
    authority.serve_with(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    certificate = x509.load_pem_x509_certificate(authority.pem)
    assert certificate.not_valid_before_utc < then < certificate.not_valid_after_utc
    assert certificate.not_valid_before_utc > then - timedelta(days=1)
