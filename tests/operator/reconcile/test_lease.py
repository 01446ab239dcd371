"""At most one replica leads at any time, one leads soon, and a former leader writes nothing."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.reconcile import lease as lease_module
from octavo_operator.reconcile.api_requests.api_error import ApiError, NotLeadingError
from octavo_operator.reconcile.api_requests.api_server import ApiServer
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.kinds import Kind
from octavo_operator.reconcile.lease import DEADLINE_SECONDS, DURATION_SECONDS, LONGEST_SECONDS, Lease, LeaseLostError

NAME = ("octavo-system", "octavo-operator")


class Api:
    """One Lease with optimistic locking, as the API server has it; may be out of reach for one replica."""

    def __init__(self) -> None:
        self.live: dict[str, Any] | None = None
        self.version = 0
        self.fails = False
        self.hang_next = 0  # so many of the next requests never arrive
        self.loses_answer = False  # the next one that writes does so and gets no answer
        self.hung: Callable[[], object] = lambda: None

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        await self._reach()
        return copy.deepcopy(self.live)

    async def put(self, kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._reach()
        seen = manifest["metadata"].get("resourceVersion")
        if seen != (self.live["metadata"]["resourceVersion"] if self.live else None):
            raise ApiError(409, "Conflict", "the object has been modified")
        self.version += 1
        self.live = copy.deepcopy(manifest)
        self.live["metadata"]["resourceVersion"] = str(self.version)
        if self.loses_answer:
            self.loses_answer = False
            await self._hang()
        return copy.deepcopy(self.live)

    async def _reach(self) -> None:
        if self.hang_next:
            self.hang_next -= 1
            await self._hang()
        if self.fails:
            raise ApiError(503, "x", "try later")

    async def _hang(self) -> None:
        self.hung()
        await asyncio.Event().wait()

    @property
    def holder(self) -> str:
        return str(self.live["spec"]["holderIdentity"]) if self.live else ""


class Behind:
    """The way of one replica to the Lease, which may be cut."""

    def __init__(self, api: Api) -> None:
        self.api, self.cut = api, False

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        self._check()
        return await self.api.get(kind, namespace, name)

    async def put(self, kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        self._check()
        return await self.api.put(kind, manifest)

    def _check(self) -> None:
        if self.cut:
            raise ApiError(0, "Unreachable", "no route")


class Clock:
    """A clock that sleeping by it moves on, so that no test waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_the_first_one_leads_and_keeps_leading(clock: Clock) -> None:
    api = Api()
    lease = Lease(api, *NAME, clock, clock.sleep)
    assert lease.seconds_left() <= 0
    await lease.acquire()
    assert api.holder == lease.identity
    keeping = asyncio.ensure_future(lease.keep())
    while clock.now < 100:
        await asyncio.sleep(0)
        assert lease.seconds_left() > 0
    keeping.cancel()


async def test_a_follower_waits_for_the_whole_duration_after_the_last_renewal(clock: Clock) -> None:
    api = Api()
    await Lease(api, *NAME, clock, clock.sleep).acquire()
    clock.now = 1000.0  # whatever its clock says: only what the follower itself has seen counts
    follower = Lease(api, *NAME, clock, clock.sleep)
    await follower.acquire()
    assert 1000 + DURATION_SECONDS <= clock.now < 1000 + 20
    assert api.holder == follower.identity


@pytest.mark.parametrize(("seconds", "least"), [(86_400, LONGEST_SECONDS), (None, DURATION_SECONDS), (1, 12), (-5, 12)])
async def test_what_another_client_writes_into_the_lease_keeps_no_replica_from_leading_for_long(
    seconds: int | None, least: int, clock: Clock
) -> None:
    api = Api()
    api.live = {"metadata": {"resourceVersion": "0"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": seconds}}
    lease = Lease(api, *NAME, clock, clock.sleep)
    await lease.acquire()
    assert least <= clock.now <= least + 2
    assert api.holder == lease.identity


async def test_a_lease_that_has_changed_as_often_as_a_field_can_count_is_taken(clock: Clock) -> None:
    """The API server refuses a larger number; then no replica would ever lead."""
    api, most = Api(), 2**31 - 1
    api.live = {"metadata": {"resourceVersion": "0"}, "spec": {"holderIdentity": "", "leaseTransitions": most}}
    await Lease(api, *NAME, clock, clock.sleep).acquire()
    assert api.live["spec"]["leaseTransitions"] == most


async def test_a_lease_that_is_released_is_taken_at_once(clock: Clock) -> None:
    api = Api()
    leader = Lease(api, *NAME, clock, clock.sleep)
    await leader.acquire()
    await leader.release()
    assert leader.seconds_left() <= 0
    follower = Lease(api, *NAME, clock, clock.sleep)
    await follower.acquire()
    assert clock.now == 0


async def test_a_lease_is_released_also_where_a_renewal_under_way_was_written(clock: Clock) -> None:
    """The work ends while a renewal waits for its answer: the Lease is another version than the one last seen."""
    api = Api()
    leader = Lease(api, *NAME, clock, clock.sleep)
    await leader.acquire()
    api.loses_answer = True
    keeping = asyncio.ensure_future(leader.keep())
    while api.loses_answer:
        await asyncio.sleep(0)
    keeping.cancel()
    await leader.release()
    assert api.holder == ""


async def test_a_lease_that_another_replica_has_by_now_is_not_released(clock: Clock) -> None:
    api = Api()
    leader, other = Lease(api, *NAME, clock, clock.sleep), Lease(api, *NAME, clock, clock.sleep)
    await leader.acquire()
    assert api.live
    api.live["spec"]["holderIdentity"] = ""
    await other.acquire()
    await leader.release()
    assert api.holder == other.identity


async def test_who_did_not_lead_releases_nothing(clock: Clock) -> None:
    api = Api()
    leader, other = Lease(api, *NAME, clock, clock.sleep), Lease(api, *NAME, clock, clock.sleep)
    await leader.acquire()
    await other.release()
    assert api.holder == leader.identity


async def test_a_leader_that_cannot_renew_stops_before_another_may_lead(clock: Clock) -> None:
    api = Api()
    lease = Lease(api, *NAME, clock, clock.sleep)
    await lease.acquire()
    api.fails = True
    with pytest.raises(LeaseLostError, match="try later"):
        await lease.keep()
    assert clock.now <= DEADLINE_SECONDS < DURATION_SECONDS


async def test_a_leader_whose_writes_are_always_late_pauses_between_them(clock: Clock) -> None:
    class Contended(Api):
        puts = 0

        async def put(self, kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
            self.puts += 1
            if self.puts > 1:
                raise ApiError(409, "Conflict", "the object has been modified")
            return await super().put(kind, manifest)

    api = Contended()
    lease = Lease(api, *NAME, clock, clock.sleep)
    await lease.acquire()
    with pytest.raises(LeaseLostError):
        await lease.keep()
    assert api.puts <= 1 + 2 * (DEADLINE_SECONDS / lease_module.RETRY_SECONDS + 1)


async def test_a_renewal_that_fails_once_is_no_matter(clock: Clock) -> None:
    api = Api()
    lease = Lease(api, *NAME, clock, clock.sleep)
    await lease.acquire()
    keeping = asyncio.ensure_future(lease.keep())
    api.fails = True
    while clock.now < 5:
        await asyncio.sleep(0)
    api.fails = False
    while clock.now < 50:
        await asyncio.sleep(0)
    assert not keeping.done()
    keeping.cancel()


async def test_a_follower_says_once_what_keeps_it_from_the_lease(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in its log, as of a quota on Leases, and in /healthz as long as it lasts."""
    api, problem = Api(), "cannot acquire the lease: try later"
    api.fails = True
    lease = Lease(api, *NAME, clock, clock.sleep)
    waiting = asyncio.ensure_future(lease.acquire())
    while clock.now < 60:
        await asyncio.sleep(0)
    assert caplog.text.count(problem) == 1
    assert lease.problem == problem
    api.fails = False
    await waiting
    assert lease.problem == ""


class SlowApi(Api):
    """Answers each request after 4 s by the clock, and only once more attempts than one have begun."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    async def _reach(self) -> None:
        answered = self.clock.now + 4
        await asyncio.sleep(3 * lease_module.REQUEST_SECONDS)
        self.clock.now = max(self.clock.now, answered)


async def test_a_replica_leads_and_keeps_leading_where_each_answer_takes_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "REQUEST_SECONDS", 0.02)
    lease = Lease(SlowApi(clock), *NAME, clock, clock.sleep)

    async def lead() -> None:
        await lease.acquire()
        await lease.keep()

    leading = asyncio.ensure_future(lead())
    async with asyncio.timeout(120):
        while clock.now < 60:
            await asyncio.sleep(0)
            assert not leading.done()
            assert clock.now < 10 or lease.seconds_left() > 0
    leading.cancel()


class TogetherApi(Api):
    """Answers requests by twos, both at once."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = asyncio.Barrier(2)

    async def _reach(self) -> None:
        await self.barrier.wait()


async def test_of_two_attempts_that_end_together_one_has_taken_the_lease(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "REQUEST_SECONDS", 0.001)
    for _ in range(16):  # which of the two is looked at first is not known
        await Lease(TogetherApi(), *NAME, clock, clock.sleep).acquire()
        assert clock.now == 0


async def test_a_leader_goes_on_where_every_other_request_is_refused(clock: Clock) -> None:
    api, chance = Api(), random.Random(1)
    lease = Lease(api, *NAME, clock, clock.sleep)
    await lease.acquire()
    keeping = asyncio.ensure_future(lease.keep())
    while clock.now < 600:
        api.fails = chance.random() < 0.5
        await asyncio.sleep(0)
        assert not keeping.done()
    keeping.cancel()


@pytest.fixture
def hanging(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API server some of whose requests hang: they are given up after a moment, which is 3 s on the clock."""

    def hung() -> None:
        clock.now += 3

    monkeypatch.setattr(lease_module, "REQUEST_SECONDS", 0.5)  # more than a busy machine needs to answer
    api = Api()
    api.hung = hung
    return api


@pytest.mark.parametrize("lost", [False, True], ids=["never arrive", "written, the answer lost"])
async def test_renewals_that_hang_are_sent_again_at_once(lost: bool, hanging: Api, clock: Clock) -> None:
    lease = Lease(hanging, *NAME, clock, clock.sleep)
    await lease.acquire()
    hanging.hang_next, hanging.loses_answer = (0, True) if lost else (2, False)
    keeping = asyncio.ensure_future(lease.keep())
    async with asyncio.timeout(120):
        while clock.now < 100:
            await asyncio.sleep(0)
            assert not keeping.done(), keeping
    assert hanging.hang_next == 0
    assert not hanging.loses_answer
    keeping.cancel()


async def test_who_gets_no_answer_stops_in_time(hanging: Api, clock: Clock) -> None:
    lease = Lease(hanging, *NAME, clock, clock.sleep)
    await lease.acquire()
    hanging.hang_next = 1000
    async with asyncio.timeout(120):
        with pytest.raises(LeaseLostError, match="no answer"):
            await lease.keep()
    assert clock.now < DURATION_SECONDS


async def test_a_follower_does_not_hang_with_its_requests(hanging: Api, clock: Clock) -> None:
    await Lease(hanging, *NAME, clock, clock.sleep).acquire()
    follower = Lease(hanging, *NAME, clock, clock.sleep)
    hanging.hang_next = 1
    async with asyncio.timeout(120):
        await follower.acquire()
    assert clock.now < 20


async def test_a_replica_that_took_the_lease_without_an_answer_need_not_wait_for_itself(
    hanging: Api, clock: Clock
) -> None:
    lease = Lease(hanging, *NAME, clock, clock.sleep)
    hanging.loses_answer = True
    async with asyncio.timeout(120):
        await lease.acquire()
    assert (hanging.holder, clock.now) == (lease.identity, 3)


async def test_a_release_that_hangs_delays_no_end(hanging: Api, clock: Clock) -> None:
    lease = Lease(hanging, *NAME, clock, clock.sleep)
    await lease.acquire()
    hanging.hang_next = 1
    async with asyncio.timeout(120):
        await lease.release()


async def test_who_sees_another_leader_ends_at_once(clock: Clock) -> None:
    api = Api()
    lease = Lease(api, *NAME, clock, clock.sleep)
    await lease.acquire()
    assert api.live
    api.version += 1
    api.live["metadata"]["resourceVersion"] = str(api.version)
    api.live["spec"]["holderIdentity"] = "another"
    with pytest.raises(LeaseLostError, match="another leads"):
        await lease.keep()
    assert lease.seconds_left() <= 0


@pytest.mark.parametrize("seed", range(20))
async def test_never_do_two_lead(seed: int) -> None:
    """Three replicas whose way to the API server is cut and mended at random, in steps of half a second."""
    chance, api, clock = random.Random(seed), Api(), Clock()
    ways = [Behind(api) for _ in range(3)]
    waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        waiting.append((clock.now + seconds, len(waiting), future))
        await future

    leases: dict[int, Lease] = {}

    async def replica(number: int) -> None:
        while True:
            leases[number] = Lease(ways[number], *NAME, clock, sleep)
            await leases[number].acquire()
            try:
                await leases[number].keep()
            except LeaseLostError:
                continue  # the process ends and is started again

    tasks = [asyncio.ensure_future(replica(number)) for number in range(3)]
    led: list[int] = []
    for _ in range(600):
        for _ in range(20):
            await asyncio.sleep(0)
        leaders = [number for number, lease in leases.items() if lease.seconds_left() > 0]
        assert len(leaders) <= 1
        led += leaders
        clock.now += 0.5
        for way in ways:
            if chance.random() < 0.05:
                way.cut = not way.cut
        for entry in [entry for entry in waiting if entry[0] <= clock.now]:
            waiting.remove(entry)
            entry[2].set_result(None)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(set(led)) > 1  # the lease really went from one to another


async def test_who_does_not_lead_does_not_write() -> None:
    cluster = Cluster(ApiServer(api=None))  # a request would fail for want of one
    cluster.server.may_write_for = lambda: 0.0
    with pytest.raises(NotLeadingError):
        await cluster.apply({"kind": "Service", "metadata": {"name": "a", "namespace": "b"}})
    with pytest.raises(NotLeadingError):
        await cluster.create_event({"metadata": {"namespace": "b"}})
