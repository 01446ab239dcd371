"""The load of LLMServices, read from their pods when an autoscaler asks, and cached for a moment.

An autoscaler that sees too little load removes replicas that are needed. So a number is only given if every pod that
has requests, or takes them, reported its own within `STALE_SECONDS`; else the answer is an error, and the autoscaler
holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from octavo_operator.metrics_api.load import Load
from octavo_operator.metrics_api.pods import EnginePod
from octavo_operator.reconcile.rate_limit import RateLimit

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0  # one round answers both metrics of an HPA, and other requests at that time
STALE_SECONDS = 30.0
BUSY_SECONDS = 300.0  # a pod that fell silent with requests has them for so long; by then it answers or was restarted
KEEP_SECONDS = 60.0  # a namespace without requests is forgotten after this time; HPA and KEDA ask twice as often
LIST_SECONDS = 1.0  # a new pod takes requests at once: as long as it is not known, the load looks smaller than it is
UNKNOWN_A_SECOND = 100  # of namespaces in which no pod was seen, as a client may name any; each costs an API request

ListPods = Callable[[str], Awaitable[Sequence[EnginePod]]]
"""The pods of all LLMServices in a namespace."""
Scrape = Callable[[EnginePod], Awaitable[Load]]
"""One pod's load; ScrapeError if it does not tell."""


class ScrapeError(Exception):
    """A pod did not report its load; the message says why."""


class NoAnswerError(Exception):
    """The load is not known; the message says why."""


@dataclass(frozen=True)
class Sample:
    """A pod's load report and its time (seconds of a monotonic clock)."""

    load: Load
    at: float


@dataclass
class _Service:
    """The load reports of one LLMService's pods, by uid."""

    samples: dict[str, Sample] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    asked_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class _Namespace:
    """The pods of all LLMServices in a namespace, and their load reports by LLMService. Times are in seconds."""

    pods: Sequence[EnginePod] = ()
    had_pods: bool = False
    listed_at: float = float("-inf")
    asked_at: float = float("-inf")
    services: dict[str, _Service] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def keep_seconds(self) -> float:
        """The seconds for which the reports are kept after the last query; few if the namespace never had pods."""
        return KEEP_SECONDS if self.had_pods or self.lock.locked() else LIST_SECONDS


class Collector:
    """Answers with the loads of services. Only namespaces that are asked about are read, and only that long."""

    def __init__(self, list_pods: ListPods, scrape: Scrape, clock: Callable[[], float] = time.monotonic) -> None:
        self._list_pods = list_pods
        self._scrape = scrape
        self._clock = clock
        self._namespaces: dict[str, _Namespace] = {}
        self._unknown = RateLimit[None](UNKNOWN_A_SECOND, 1 / UNKNOWN_A_SECOND, clock)

    async def services(self, namespace: str) -> list[str]:
        """Return the LLMServices of the namespace that have pods; NoAnswerError if it is not looked at now."""
        return sorted({pod.service for pod in (await self._listed(namespace)).pods})

    async def load(self, namespace: str, name: str) -> Load:
        """Return the load of one LLMService, all its pods together; NoAnswerError if it is not known."""
        known = await self._listed(namespace)
        pods = [pod for pod in known.pods if pod.service == name]
        if not pods:
            raise NoAnswerError(f"no pod of LLMService {namespace}/{name} is running")
        service = known.services.setdefault(name, _Service())
        async with service.lock:
            if self._clock() - service.asked_at > FRESH_SECONDS:
                await self._ask(service, pods)
        return total(f"{namespace}/{name}", pods, service.samples, service.failures, self._clock())

    async def _listed(self, namespace: str) -> _Namespace:
        known = self._known(namespace)
        async with known.lock:
            if self._clock() - known.listed_at > LIST_SECONDS:
                if not known.had_pods:  # one that is scaled to zero has an autoscaler that must see its next pod
                    self._take_turn(namespace)
                known.pods = await self._list_pods(namespace)
                known.had_pods = known.had_pods or bool(known.pods)
                known.listed_at = self._clock()
                there = {pod.service for pod in known.pods}
                known.services = {name: each for name, each in known.services.items() if name in there}
        return known

    def _take_turn(self, namespace: str) -> None:
        """Count an API request for a namespace in which no pod was seen; NoAnswerError if there were too many."""
        if self._unknown.seconds_left(None) > 0:
            raise NoAnswerError(
                f"no pod of an LLMService was seen in namespace {namespace}, and clients ask about more than "
                f"{UNKNOWN_A_SECOND} such namespaces a second: try again in a second"
            )
        self._unknown.note(None)

    def _known(self, namespace: str) -> _Namespace:
        """Return the cached state of a namespace; a new one replaces old ones, as requests may name any namespace."""
        now = self._clock()
        if namespace not in self._namespaces:
            kept = {name: each for name, each in self._namespaces.items() if now - each.asked_at <= each.keep_seconds}
            self._namespaces = {**kept, namespace: _Namespace()}
        known = self._namespaces[namespace]
        known.asked_at = now
        return known

    async def _ask(self, service: _Service, pods: Iterable[EnginePod]) -> None:
        """Ask all pods at once; answers of pods that are gone are dropped."""
        pods = list(pods)
        answers = await asyncio.gather(*(self._scrape(pod) for pod in pods), return_exceptions=True)
        now = self._clock()
        there = {pod.uid for pod in pods}
        service.samples = {uid: sample for uid, sample in service.samples.items() if uid in there}
        service.failures = {}
        for pod, answer in zip(pods, answers, strict=True):
            if isinstance(answer, Load):
                service.samples[pod.uid] = Sample(answer, now)
            elif isinstance(answer, ScrapeError):
                service.failures[pod.uid] = str(answer)
            else:
                raise answer
        service.asked_at = now


def total(
    service: str, pods: Sequence[EnginePod], samples: Mapping[str, Sample], failures: Mapping[str, str], now: float
) -> Load:
    """Return the sum of the recent reports of `pods`. NoAnswerError: one that has or takes requests made none.

    Of those that are not ready and do not answer, one that had requests when it was last heard is overloaded or hangs.
    Any other counts as nothing: it starts, or has ended its last answer.
    """
    recent = {uid: sample.load for uid, sample in samples.items() if now - sample.at <= STALE_SECONDS}
    busy = {uid for uid, sample in samples.items() if sample.load.in_flight and now - sample.at <= BUSY_SECONDS}
    silent = [pod for pod in pods if pod.uid not in recent and (pod.ready or (pod.uid in busy and not pod.ending))]
    if silent:
        why = failures.get(silent[0].uid, "it was not asked in time")
        more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
        raise NoAnswerError(f"pod {silent[0].name}{more} of LLMService {service} does not report its load: {why}")
    heard = [recent[pod.uid] for pod in pods if pod.uid in recent]
    if not heard:
        why = next(iter(failures.values()), "none was asked")
        raise NoAnswerError(f"no pod of LLMService {service} reports its load: {why}")
    return reduce(Load.__add__, heard)
