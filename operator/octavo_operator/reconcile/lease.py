"""Leader election: of several replicas the one whose name is in the Lease leads, as long as it renews it.

The algorithm is that of client-go's leader election, whose clocks need not agree: a follower takes the Lease over only
after it has itself seen it unchanged for the Lease's duration, and a leader stops before that, by its own clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import LEASE, Kind

logger = logging.getLogger(__name__)

DURATION_SECONDS = 12
"""The time without a renewal after which another replica may lead."""
LONGEST_SECONDS = 60
"""The longest duration of a Lease that replicas respect: no version of the operator writes a longer one, and one that
another client wrote must not keep all replicas from leading.
"""
DEADLINE_SECONDS = 10.0
"""The time without a renewal after which the leader stops: before another may lead."""
PAUSE_SECONDS = 2.0
"""The time from one renewal to the next, and the pause between two looks of a follower."""
RETRY_SECONDS = 0.5
"""The pause after a renewal that was refused: an overloaded API server may refuse every other one."""
REQUEST_SECONDS = 3.0
"""The time without an answer after which the same is asked once more, without giving up the first: one request that
hangs must not cost the lease, and neither must an API server that takes longer for each answer.
"""
_CONFLICT = 409
_Answer = TypeVar("_Answer")
_MOST_TRANSITIONS = 2**31 - 1
"""The largest value that the API server accepts: another client may have written it, and one more would be refused."""
_NO_ANSWER = "the API server gives no answer in time"


class LeaseApi(Protocol):
    """The API calls that a lease makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the live object, or None."""

    async def put(self, kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create it, or replace the version that its resourceVersion names; ApiError 409: it is another by now."""


class LeaseLostError(Exception):
    """Another replica leads, or may lead at any moment."""


class Lease:
    """One replica's view of the Lease called `name` in `namespace`."""

    def __init__(
        self,
        api: LeaseApi,
        namespace: str,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"  # another one after each start
        self._api = api
        self._metadata = {"namespace": namespace, "name": name}
        self._clock, self._sleep = clock, sleep
        self._live: dict[str, Any] | None = None
        self._seen: tuple[Any, float] = (None, 0.0)
        self._renewed = float("-inf")
        self.problem = ""
        """What keeps this replica, and so perhaps every one, from the lease; empty: nothing does."""

    def seconds_left(self) -> float:
        """Return for how long this replica still leads without a renewal; 0 or less: it does not lead."""
        return self._renewed + DEADLINE_SECONDS - self._clock()

    async def acquire(self) -> None:
        """Return once this replica leads."""
        known = ""
        while True:
            try:
                await self._first_answer(self._take_if_free, self._clock() + 2 * DEADLINE_SECONDS)
                self.problem = ""
                if self.seconds_left() > PAUSE_SECONDS:  # of two attempts that end together, one has taken it
                    logger.info("became the leader by the lease %(namespace)s/%(name)s", self._metadata)
                    return
            except (ApiError, TimeoutError) as error:
                before, self.problem = self.problem, f"cannot acquire the lease: {str(error) or _NO_ANSWER}"
                if self.problem != before:  # it is asked every two seconds, and a right may be missing for days
                    logger.warning("%s", self.problem)
            if (holder := self._holder()) and holder != known:
                logger.info("following: the leader is %s", holder)
                known = holder
            await self._sleep(PAUSE_SECONDS)

    async def keep(self) -> None:
        """Renew the lease forever; LeaseLostError if another replica leads, or might lead by now."""
        pause = self._pause()
        while True:
            await self._sleep(pause)
            pause = await self._renew_in_time()

    def _pause(self) -> float:
        """Return in how many seconds the next renewal is due; none are left where the last one took long."""
        return max(0.0, self._renewed + PAUSE_SECONDS - self._clock())

    async def _renew_in_time(self) -> float:
        """Try once to renew; return in how many seconds to try again. LeaseLostError as `keep`."""
        before = self._renewed
        try:
            await self._first_answer(self._renew, self._renewed + DEADLINE_SECONDS)
        except (ApiError, TimeoutError) as error:
            message = str(error) or _NO_ANSWER
            if self.seconds_left() <= RETRY_SECONDS:
                raise LeaseLostError(f"the lease cannot be renewed: {message}") from None
            logger.warning("cannot renew the lease: %s", message)
            return RETRY_SECONDS
        return self._pause() if self._renewed > before else RETRY_SECONDS  # another writer was in time twice

    async def _first_answer(self, attempt: Callable[[], Coroutine[Any, Any, _Answer]], until: float) -> _Answer:
        """Return the first answer of `attempt`, which is begun again after each REQUEST_SECONDS without one.

        TimeoutError: there is none by `until`.
        """
        running: set[asyncio.Task[_Answer]] = set()
        try:
            while (left := until - self._clock()) > 0:
                running.add(asyncio.ensure_future(attempt()))
                timeout = min(REQUEST_SECONDS, left)
                done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return min(done, key=lambda task: task.exception() is not None).result()
            raise TimeoutError
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def release(self) -> None:
        """Let another replica lead at once, if this one does. To be called when all work has ended."""
        if self._live is None or self.seconds_left() <= 0:
            return
        self._renewed = float("-inf")
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._write_no_holder()
        except (ApiError, TimeoutError) as error:
            logger.warning("cannot release the lease: %s", str(error) or _NO_ANSWER)

    async def _write_no_holder(self) -> None:
        """Write that no replica holds the Lease, unless another one does.

        A renewal that was under way when the work ended may have been written without an answer: then the Lease is
        another version than the one last seen, and is read again.
        """
        while self._holder() == self.identity:
            try:
                self._live = await self._api.put(LEASE, self._manifest(holder=""))
            except ApiError as error:
                if error.status != _CONFLICT:
                    raise
                self._note(await self._api.get(LEASE, **self._metadata))

    async def _take_if_free(self) -> None:
        self._note(await self._api.get(LEASE, **self._metadata))
        if self._is_free():
            await self._take()

    async def _renew(self) -> None:
        if await self._take():
            return
        self._note(await self._api.get(LEASE, **self._metadata))
        if self._holder() not in ("", self.identity):
            self._renewed = float("-inf")
            raise LeaseLostError(f"{self._holder()} leads")
        await self._take()

    async def _take(self) -> bool:
        """Write this replica's name into the Lease as it was last seen; False: it has changed since."""
        began = self._clock()
        try:
            self._live = await self._api.put(LEASE, self._manifest(self.identity))
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        self._renewed = began
        return True

    def _note(self, live: dict[str, Any] | None) -> None:
        self._live = live
        version = live["metadata"]["resourceVersion"] if live else None
        if self._seen[0] != version:
            self._seen = (version, self._clock())

    def _holder(self) -> str:
        return str(((self._live or {}).get("spec") or {}).get("holderIdentity") or "")

    def _is_free(self) -> bool:
        spec = (self._live or {}).get("spec") or {}
        if self._holder() in ("", self.identity):  # its own name: an answer to its request was lost
            return True
        seconds = min(max(int(spec.get("leaseDurationSeconds") or 0), DURATION_SECONDS), LONGEST_SECONDS)
        return self._clock() >= self._seen[1] + seconds

    def _manifest(self, holder: str) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (self._live or {}).get("spec") or {}
        changes = int(before.get("leaseTransitions") or 0) + (self._holder() != holder and bool(holder))
        changes = min(changes, _MOST_TRANSITIONS)
        metadata: dict[str, Any] = dict(self._metadata)
        if self._live:
            metadata["resourceVersion"] = self._live["metadata"]["resourceVersion"]
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_SECONDS if holder else 1,
            "acquireTime": before.get("acquireTime") if self._holder() == holder else now,
            "renewTime": now,
            "leaseTransitions": changes,
        }
        return {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": spec}
