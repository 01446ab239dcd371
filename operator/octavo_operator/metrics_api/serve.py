"""`octavo-operator metrics-api`: the servers, the certificate, the registration. Any part that fails ends the whole."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import ssl
from dataclasses import dataclass
from datetime import datetime

from octavo_operator.metrics_api.app import aggregated, plain
from octavo_operator.metrics_api.certificates import RENEW_SECONDS, Authority
from octavo_operator.metrics_api.collector import Collector
from octavo_operator.metrics_api.front_proxy import CONFIG_MAP, NAMESPACE, FrontProxy, NoAggregationError
from octavo_operator.metrics_api.pods import list_engine_pods
from octavo_operator.metrics_api.registration import INTERVAL_SECONDS, SOON_SECONDS, Registration
from octavo_operator.metrics_api.scrape import Scraper
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.listen import listen

logger = logging.getLogger(__name__)

_CONFIG_MAPS = Kind("ConfigMap", "v1", "configmaps")
_FRONT_PROXY_SECONDS = 300.0


@dataclass(frozen=True)
class MetricsApiOptions:
    """The options of the metrics API. `namespace`/`service` is the Service by which the API server reaches `tls_port`.

    `register`: create the APIService of external metrics where there is none.
    """

    namespace: str
    service: str
    tls_port: int = 8443
    port: int = 8080
    register: bool = False


async def run(options: MetricsApiOptions) -> None:
    """Serve until SIGINT or SIGTERM; NoAggregationError or ApiError if it cannot begin.

    AuthorityChangedError asks for a new start; autoscalers leave the replicas as they are meanwhile.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster, scraper = await Cluster.connect(), Scraper()
    try:
        await _serve(options, cluster, scraper, stop)
    finally:
        await scraper.close()
        await cluster.close()


async def _serve(options: MetricsApiOptions, cluster: Cluster, scraper: Scraper, stop: asyncio.Event) -> None:
    clients = Clients(FrontProxy.of(await cluster.get(_CONFIG_MAPS, NAMESPACE, CONFIG_MAP)))
    authority = Authority(hosts(options), lambda: datetime.fromisoformat(cluster.server.clock.now()))
    authority.serve_with(clients.context)
    collector = Collector(functools.partial(list_engine_pods, cluster), scraper.scrape)
    registration = Registration(cluster, options.namespace, options.service, authority.pem, options.register)
    runners = [
        await listen(aggregated(collector, lambda: clients.front_proxy), options.tls_port, clients.context),
        await listen(
            plain(collector, registration.not_trusted, registration.problem, registration.standstill), options.port
        ),
    ]
    loops = [
        asyncio.create_task(_register(registration)),
        asyncio.create_task(_renew(authority, clients.context)),
        asyncio.create_task(_follow_clients(cluster, clients)),
    ]
    try:
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in loops:
            task.cancel()
        for runner in runners:
            await runner.cleanup()


def hosts(options: MetricsApiOptions) -> tuple[str, ...]:
    """Return the names of the server; the API server asks for the first."""
    name = f"{options.service}.{options.namespace}"
    return (f"{name}.svc", f"{name}.svc.cluster.local")


class AuthorityChangedError(Exception):
    """The former authority of the API server's certificate is trusted no longer, nor are connections by it."""


class Clients:
    """The clients that may connect, and the TLS context that checks them.

    A context can be made to trust another authority, but not to distrust one: for that the process has to end.
    """

    def __init__(self, front_proxy: FrontProxy) -> None:
        self.front_proxy = front_proxy
        self.context = front_proxy.context()

    def change(self, front_proxy: FrontProxy) -> None:
        """Admit `front_proxy` from now on; AuthorityChangedError if its authority is another."""
        if front_proxy.authority != self.front_proxy.authority:
            raise AuthorityChangedError("the API server's front-proxy authority has changed")
        if front_proxy != self.front_proxy:
            self.front_proxy = front_proxy
            logger.info("the API server's front-proxy names have changed")


async def _register(registration: Registration) -> None:
    while True:
        await registration.check()
        await asyncio.sleep(SOON_SECONDS if registration.not_trusted() else INTERVAL_SECONDS)


async def _renew(authority: Authority, context: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        authority.serve_with(context)


async def _follow_clients(cluster: Cluster, clients: Clients) -> None:
    """Follow the settings; while they cannot be read, as where someone has deleted them, the known ones stay."""
    while True:
        await asyncio.sleep(_FRONT_PROXY_SECONDS)
        try:
            clients.change(FrontProxy.of(await cluster.get(_CONFIG_MAPS, NAMESPACE, CONFIG_MAP)))
        except (ApiError, NoAggregationError) as error:
            logger.warning("cannot read how the API server identifies itself: %s", error)
