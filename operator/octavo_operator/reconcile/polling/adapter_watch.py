"""Polls pods for the adapters that they have loaded: `/health/adapters` of each whose LLMService lists any.

Only the leader asks: every three seconds while anything changes, more rarely once nothing has for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from octavo_operator.api.value_at import value_at
from octavo_operator.reconcile.kinds import LLMSERVICE, POD
from octavo_operator.reconcile.observation.observe import Index, Key, Object
from octavo_operator.reconcile.pods.adapter_report import AdapterReport
from octavo_operator.reconcile.pods.engine_container import running_engine
from octavo_operator.reconcile.polling.poll_pods import ASKING_FAILED, PodQuestion, address_of, poll
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.render.container import PORT

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 3.0
CALM_AFTER_SECONDS = 180.0
"""Longer than a change of a ConfigMap takes to reach a pod."""
CALM_INTERVAL_SECONDS = 20.0
_LONGEST_ANSWER = 1 << 20


@dataclass
class _Asked:
    """The state of a pod when it was last asked."""

    life: Any
    """Changes when its engine starts again, or its LLMService changes."""
    changed_at: float
    asked_at: float = field(default=float("-inf"))


class AdapterWatch:
    """Keeps `reports` by pod uid, and queues the LLMService of a pod whose report has changed."""

    def __init__(
        self,
        indexes: dict[str, Index],
        queue: WorkQueue[Key],
        port: int = PORT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reports: dict[str, AdapterReport] = {}
        self._asked: dict[str, _Asked] = {}
        self._indexes, self._queue, self._clock = indexes, queue, clock
        self._question = PodQuestion("/health/adapters", port, _LONGEST_ANSWER)

    async def run(self) -> None:
        """Poll again and again, until the task is cancelled."""
        await poll(self.poll_once, INTERVAL_SECONDS)

    async def poll_once(self, session: aiohttp.ClientSession) -> None:
        """Ask each pod whose next poll is due."""
        now, seen, questions = self._clock(), set[str](), []
        for key, generation, pod in self._pods():
            uid, engine = pod["metadata"]["uid"], running_engine(pod)
            if engine is None or not (address := address_of(pod)):
                continue
            seen.add(uid)
            life = (generation, engine.get("restartCount"))
            asked = self._asked.get(uid)
            if asked is None or asked.life != life:
                if asked is not None and asked.life[1] != life[1]:
                    self._forget(uid, key)
                asked = self._asked[uid] = _Asked(life, now)
            calm = now - asked.changed_at > CALM_AFTER_SECONDS
            if now - asked.asked_at >= (CALM_INTERVAL_SECONDS if calm else 0):
                asked.asked_at = now
                questions.append(self._ask(session, uid, key, address))
        for uid in self._asked.keys() - seen:
            del self._asked[uid]
            self.reports.pop(uid, None)
        await asyncio.gather(*questions)

    def _pods(self) -> Iterator[tuple[Key, int, Object]]:
        pods = self._indexes.get(POD.plural, {})
        services = self._indexes.get(LLMSERVICE.plural, {})
        for key in list(services):
            for service in services.get(key, ()):
                if value_at(service, list, "spec", "adapters"):
                    generation = service["metadata"].get("generation", 1)
                    yield from ((key, generation, pod) for pod in pods.get(key, ()))

    def _forget(self, uid: str, key: Key) -> None:
        if self.reports.pop(uid, None) is not None:
            self._queue.add(key)

    async def _ask(self, session: aiohttp.ClientSession, uid: str, key: Key, address: str) -> None:
        try:
            status, data = await self._question.ask(session, address)
            if status != 200:
                return
            report = AdapterReport.model_validate_json(data)
        except ASKING_FAILED as error:
            logger.debug("%s/%s: the pod at %s does not report its adapters: %s", *key, address, error)
            return
        before, self.reports[uid] = self.reports.get(uid), report
        if before is None or _news_in(before) != _news_in(report):
            if (asked := self._asked.get(uid)) is not None:
                asked.changed_at = self._clock()
            self._queue.add(key)


def _news_in(report: AdapterReport) -> list[tuple[str, ...]]:
    """Return the parts of a report whose change is worth a write of the status: not each kilobyte of a download."""
    return [
        (each.name, each.version, each.state, each.message if each.state == "Failed" else "")
        for each in report.adapters
    ]
