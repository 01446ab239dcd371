"""Polls pods for the progress of their models: `/health/startup`, of the engine and of `fetch`.

Only pods that download or load are asked, and those that have loaded once more; and only the leader asks. Nothing
depends on an answer: where none comes (another network policy, an older engine) the phase is reported all the same, and
bytes are not. A pod that serves and cannot be reached is named, since its adapters cannot be asked for either.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp

from octavo_operator.reconcile.kinds import LLMSERVICE, POD
from octavo_operator.reconcile.observation.observe import Index, Key, Object
from octavo_operator.reconcile.pods.engine_container import running_engine
from octavo_operator.reconcile.pods.load_report import LoadReport
from octavo_operator.reconcile.polling.poll_pods import (
    ASKING_FAILED,
    UNREACHABLE,
    PodQuestion,
    address_of,
    poll,
    why_unreachable,
)
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.render.container import PORT
from octavo_operator.render.fetch import FETCH

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 3.0
NEWS_SECONDS = 10.0  # between two reports that only have more bytes: each is a write of the status
NEWS_SHARE = 0.02  # of all bytes, to be worth a write
_TRIES = 3
_SELDOM = 20
"""Of so many looks one asks a pod that could not be reached: perhaps it can be by now."""
_LONGEST_ANSWER = 16_384

Reports = dict[str, LoadReport]
"""Reports by the uid of the pod."""


class LoadWatch:
    """Keeps `reports` and queues the LLMService whose pod has news that are worth a write of its status."""

    def __init__(
        self,
        indexes: Mapping[str, Index],
        queue: WorkQueue[Key],
        port: int = PORT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reports: Reports = {}
        self.unanswered: dict[str, str] = {}
        """By the uid of a pod that serves, why the operator cannot reach it, as a sentence."""
        self._written: Reports = {}
        self._written_at: dict[Key, float] = {}
        self._clock = clock
        self._indexes = indexes
        self._queue = queue
        self._tries: dict[str, int] = {}
        self._question = PodQuestion("/health/startup", port, _LONGEST_ANSWER)

    async def run(self) -> None:
        """Poll again and again, until the task is cancelled."""
        await poll(self.poll_once, INTERVAL_SECONDS)

    async def poll_once(self, session: aiohttp.ClientSession) -> None:
        """Ask each pod that loads, and a few times each that has loaded, for figures that exist only then."""
        pods = {pod["metadata"]["uid"]: (key, pod) for key, pod in self._pods()}
        for known in (self.reports, self._written, self._tries, self.unanswered):
            for gone in known.keys() - pods.keys():
                del known[gone]
        for idle in self._written_at.keys() - {key for key, _ in pods.values()}:
            del self._written_at[idle]
        questions = []
        for uid, (key, pod) in pods.items():
            address, loads = address_of(pod), is_loading(pod)
            tries = self._tries[uid] = 0 if loads else self._tries.get(uid, 0) + 1
            seldom = uid in self.unanswered and tries % _SELDOM == 0
            if address and (tries <= _TRIES or seldom):
                questions.append(self._ask(session, key, pod, address, last=not loads))
        await asyncio.gather(*questions)

    def _pods(self) -> Iterator[tuple[Key, Object]]:
        pods = self._indexes.get(POD.plural, {})
        for key in list(self._indexes.get(LLMSERVICE.plural, {})):
            for pod in pods.get(key, ()):
                if is_loading(pod) or has_loaded(pod):
                    yield key, pod

    async def _ask(self, session: aiohttp.ClientSession, key: Key, pod: Object, address: str, last: bool) -> None:
        uid = pod["metadata"]["uid"]
        try:
            _, data = await self._question.ask(session, address)
            if self.unanswered.pop(uid, ""):
                self._queue.add(key)
            report = LoadReport.model_validate_json(data)
        except ASKING_FAILED as error:
            logger.debug("%s/%s: the pod at %s does not report its loading progress: %s", *key, address, error)
            if uid in self.reports and self.reports[uid].phase == "ready":  # its engine ended, and begins again
                del self.reports[uid]
            if isinstance(error, UNREACHABLE) and self._tries[uid] >= _TRIES:
                self._note_unanswered(key, pod, error)
            return
        if last:
            self._tries[uid] = _TRIES
        self.reports[uid] = report
        now = self._clock()
        waited = now - self._written_at.get(key, float("-inf")) >= NEWS_SECONDS
        if is_news(self._written.get(uid), report, waited):
            self._written[uid], self._written_at[key] = report, now
            self._queue.add(key)

    def _note_unanswered(self, key: Key, pod: Object, error: Exception) -> None:
        """Note that a pod that serves cannot be reached, though the kubelet and clients reach it."""
        metadata = pod["metadata"]
        if metadata["uid"] in self.unanswered:
            return
        self.unanswered[metadata["uid"]] = sentence = (
            f"the operator cannot ask pod {metadata['name']} ({why_unreachable(error)}): if a NetworkPolicy keeps it "
            "out, set spec.networkPolicy, which lets it in; if a mesh wants mutual TLS, let its port "
            f"{PORT} take plain connections"
        )
        logger.warning("%s/%s: %s", *key, sentence)
        self._queue.add(key)


def is_news(written: LoadReport | None, report: LoadReport, waited: bool) -> bool:
    """Return True if `report` is worth a write of the status after `written`, the last one that was written.

    More bytes are only if `waited`, or if they complete the download.
    """
    if written is None or (written.phase, written.memory, written.model) != (report.phase, report.memory, report.model):
        return True
    if written == report:
        return False
    before, loaded, total = written.bytes_loaded or 0, report.bytes_loaded or 0, report.bytes_total or 0
    moved = abs(loaded - before)
    if moved and loaded == total:
        return True
    return waited and (not moved or moved >= NEWS_SHARE * total)


def is_loading(pod: Object) -> bool:
    """Return True if the pod downloads or loads its model."""
    status: Mapping[str, Any] = pod.get("status") or {}
    engine, init = running_engine(pod), status.get("initContainerStatuses") or ()
    fetching = any(each["name"] == FETCH and "running" in (each.get("state") or {}) for each in init)
    return fetching or (engine is not None and not engine.get("started"))


def has_loaded(pod: Object) -> bool:
    """Return True if the pod's engine has loaded the model."""
    engine = running_engine(pod)
    return engine is not None and bool(engine.get("ready"))
