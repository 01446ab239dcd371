"""Admission: four limits on the requests that wait. A rejected request gets a Retry-After.

- Queued requests: sequences that were accepted and have no token yet, except those in the engine's prefill.
- Queued prefill tokens: the prompt tokens of the sequences that have not begun to answer.
- KV commitment: the KV tokens that accepted, unfinished sequences may need for prompt and answer. An answer counts
  with its max_tokens, but with no more tokens than the longest of the latest answers had, as few answers use all of
  their max_tokens. This limit does not reject a request that finds a free slot among --max-num-seqs.
- Key share: the part of each of these three that one of several API keys may take. It holds also while other keys are
  not in use, so that there is room when they are.

New requests never displace those that have begun, preempted ones included. A request that is alone is never too large;
the amount by which it exceeds its key's share does not count against other keys.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from octavo_engine.engine.info import EngineInfo
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.server.admission.auth import Key
from octavo_engine.server.admission.bytes_in_use import Hold
from octavo_engine.server.admission.key_limits import KeyLimits, KeyMeter
from octavo_engine.server.admission.occupancy import Occupancy
from octavo_engine.server.admission.refusal import RefusedError, Rejection, retry_after

_ANSWERS = 128
"""A new answer is expected to be no longer than the longest of this many latest answers."""
_DAY = 86_400.0
_CAUTION = 4 / 3
"""An expected wait is multiplied by this. Rates fall as a queue fills: at five times the load that the server can
answer, 39 % of the requests that were expected to wait for at most 30 s waited longer, by up to a third."""
RESERVED_PARTS = 64
"""If there are several API keys, each may use a limit divided by this, even when other keys have used all of it."""
_FIRST_GUESS = 512
"""Tokens that the first answers are expected to reach at most."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The settings of the limits."""

    requests: int
    """--max-queued-requests."""
    tokens: int
    """--max-queued-tokens."""
    kv_ratio: float = 4.0
    """--max-kv-commitment."""
    key_share: float = 1.0
    """--max-key-share."""
    queue_seconds: float = float("inf")
    """--max-queue-seconds."""


@dataclass(slots=True)
class Occupancies:
    """The amounts in use of requests, prompt tokens and KV tokens, of all keys together or of one key."""

    clock: Callable[[], float]
    requests: Occupancy = field(init=False)
    tokens: Occupancy = field(init=False)
    kv: Occupancy = field(init=False)

    def __post_init__(self) -> None:
        self.requests, self.tokens, self.kv = Occupancy(self.clock), Occupancy(self.clock), Occupancy(self.clock)

    @property
    def unused(self) -> bool:
        """True if nothing is in use."""
        return self.requests.used == self.tokens.used == self.kv.used == 0


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """An HTTP request that was admitted: its sequences that wait or run, and the amounts that each takes of limits."""

    admission: Admission
    key: Key
    priority: int
    meter: KeyMeter
    occupancies: tuple[Occupancies, Occupancies]
    """The amounts in use of all keys together, and of this request's key."""
    waiting: int
    """Sequences that have no token yet."""
    begun: int = 0
    """Sequences that have a token and have not ended."""
    tokens_each: int = 0
    kv_each: int = 0
    size: Hold | None = None
    """The bytes that the prepared request takes."""
    _left: bool = False

    def add_tokens(self, prompt: int, answer: int) -> None:
        """Count the prompt tokens (of all sequences) and the answers' tokens (`answer` is the max_tokens of each).

        RefusedError if a limit is exceeded.
        """
        kv = prompt + self.waiting * self.admission.expected_tokens(answer)
        self.admission.check_tokens(self.key, prompt)
        self.admission.check_kv(self.key, kv, self.admission.queued, self.waiting)
        self.meter.tokens.take(prompt)
        self.tokens_each, self.kv_each = prompt // self.waiting, kv // self.waiting
        for occupancies in self.occupancies:
            occupancies.tokens.take(self.tokens_each * self.waiting)
            occupancies.kv.take(self.kv_each * self.waiting)

    def begin(self) -> None:
        """Note that one of the sequences has its first token."""
        self._leave_queue(1, served=True)
        self.begun += 1
        self.admission.begun += 1

    def count_output(self, tokens: int) -> None:
        """Charge the key for this many tokens of an answer."""
        self.meter.tokens.take(tokens)

    def end(self, begun: bool) -> None:
        """Note that one of the sequences has ended; `begun` says whether it had a token."""
        if begun:
            self.begun -= 1
            self.admission.begun -= 1
        else:
            self._leave_queue(1, served=False)
        self._release_kv(1, served=begun)

    def leave(self) -> None:
        """Release all amounts that the request still takes. May be called more than once."""
        if self._left:
            return
        self._left = True
        if self.size is not None:
            self.size.release()
        self._release_kv(self.waiting + self.begun, served=False)
        self._leave_queue(self.waiting, served=False)
        self.admission.begun -= self.begun
        self.begun = 0

    def _leave_queue(self, sequences: int, *, served: bool) -> None:
        self.waiting -= sequences
        self.admission.leave_lane(self.key, self.priority, sequences)
        for occupancies in self.occupancies:
            occupancies.requests.release(sequences, served=served)
            occupancies.tokens.release(sequences * self.tokens_each, served=served)

    def _release_kv(self, sequences: int, *, served: bool) -> None:
        for occupancies in self.occupancies:
            occupancies.kv.release(sequences * self.kv_each, served=served)


class Arrival:
    """An HTTP request from its headers to its end. It counts as a running request of its key, and first as queued."""

    def __init__(self, meter: KeyMeter, occupancies: Sequence[Occupancies]) -> None:
        self._meter = meter
        self._occupancies = occupancies
        meter.begin()
        for each in occupancies:
            each.requests.take(1)

    def leave_queue(self) -> None:
        """Stop counting the request as queued: its sequences count from now on, or it has ended."""
        for each in self._occupancies:
            each.requests.release(1, served=False)
        self._occupancies = ()

    def end(self) -> None:
        """Stop counting the request."""
        self.leave_queue()
        self._meter.end()


class Admission:
    """Decides in the HTTP process whether a request may wait. Every check raises RefusedError to reject it."""

    def __init__(
        self,
        limits: QueueLimits,
        stats: Callable[[], SchedulerStats],
        info: Callable[[], EngineInfo | None],
        clock: Callable[[], float] = time.monotonic,
        several_keys: Callable[[], bool] = lambda: False,
        priorities: bool = True,
    ) -> None:
        """`priorities` says whether a request's own priority, which its body names, has an effect."""
        self.limits = limits
        self.total = Occupancies(clock)
        self.begun = 0
        """Sequences that have a token and have not ended."""
        self.lanes: Counter[tuple[str, int]] = Counter()
        """Sequences without a token, by the name of their key and their priority."""
        self._stats, self._info, self._clock, self._several_keys = stats, info, clock, several_keys
        self._priorities = priorities
        self._by_key: dict[str, Occupancies] = {}
        self._in_use: dict[str, Occupancies] = {}
        """Those of `_by_key` of which something may be in use, and few others."""
        self._meters = KeyLimits(clock)
        self._answers = deque([_FIRST_GUESS], maxlen=_ANSWERS)

    @property
    def queued(self) -> int:
        """Sequences that wait for a slot among --max-num-seqs."""
        return max(0, self.total.requests.used - self._in_prefill)

    @property
    def _in_prefill(self) -> int:
        """Sequences that run in the engine and have no token yet."""
        return max(0, self._stats().running - self.begun)

    def _free_slots(self, key: Key, sequences: int) -> int:
        """Return how many sequences of a key's request with `sequences` can begin at once.

        The slots that the scheduler keeps for keys with one request at a time are free only for one of these.
        """
        stats, info = self._stats(), self._info()
        if info is None or stats.waiting:
            return 0
        single = sequences == 1 and self._occupancies_of(key).kv.used == 0
        kept = 0 if single else stats.kept_slots
        return max(0, (stats.running_limit or info.max_num_seqs) - kept - stats.running)

    def arrive(self, key: Key, *, generates: bool) -> Arrival:
        """Count a request of which only the headers are known.

        RefusedError if its key may not begin another request, or if a limit has no room for even the smallest one.
        """
        meter = self._meters.meter(key)
        meter.check(key)
        if generates:
            self.check_any(key)
            if not self._priorities:
                self._check_deadline(key, key.priority_of(None), float("inf"))
        return Arrival(meter, (self.total, self._occupancies_of(key)) if generates else ())

    def headers_of(self, key: Key) -> dict[str, str]:
        """Return the response headers about the key's limits a minute."""
        return self._meters.meter(key).headers()

    def check_any(self, key: Key) -> None:
        """Reject a request of which only the key is known if a limit has no room for even the smallest request."""
        self.check_requests(key, 1)
        self.check_tokens(key, 1)
        self.check_kv(key, 1, self.queued + 1, 1)

    def enter(self, key: Key, sequences: int, priority: int = 0, seconds_left: float = float("inf")) -> AdmittedRequest:
        """Admit a request with `sequences` sequences that has to end within `seconds_left` seconds."""
        meter = self._meters.meter(key)
        meter.check_tokens(key)
        self.check_requests(key, sequences)
        self._check_deadline(key, priority, seconds_left)
        occupancies = (self.total, self._occupancies_of(key))
        for each in occupancies:
            each.requests.take(sequences)
        self.lanes[key.name, priority] += sequences
        return AdmittedRequest(self, key, priority, meter, occupancies, sequences)

    def leave_lane(self, key: Key, priority: int, sequences: int) -> None:
        """Note that `sequences` sequences of this key and priority no longer wait."""
        lane = key.name, priority
        self.lanes[lane] -= sequences
        if not self.lanes[lane]:
            del self.lanes[lane]

    def check_requests(self, key: Key, sequences: int) -> None:
        """Check that the queue and the free slots have room for `sequences` sequences.

        A request larger than the queue and all slots together is accepted if no request waits and there is any room.
        """
        free, queued, info = self._free_slots(key, sequences), self.queued, self._info()
        queued = max(0, queued - self._beyond_share(key, lambda each: each.requests, self.limits.requests))
        alone = queued == 0 and sequences > self.limits.requests + (info.max_num_seqs if info else 0)
        mine = self._occupancies_of(key).requests
        own = max(0, mine.used - self._in_prefill)
        full = self.limits.requests + free - queued < (1 if alone else sequences)
        if full and not self._is_reserved(own + sequences, queued + sequences, self.limits.requests):
            room = f"{free} can begin at once and {self.limits.requests} may wait (--max-queued-requests)"
            detail = f"{queued} requests are waiting, {room}; this request adds {sequences}"
            waits = self.total.requests.seconds_to_free(self.total.requests.used), self._seconds_to_slot()
            seconds = max((each for each in waits if each is not None), default=None)
            raise RefusedError(503, "queued_requests", detail, retry_after(seconds))
        self._check_share(mine, own, sequences, self.limits.requests, free, "requests", "--max-queued-requests")

    def check_tokens(self, key: Key, tokens: int) -> None:
        """Check that `tokens` prompt tokens may wait in addition to those that wait already."""
        limit = self.limits.tokens
        waiting = self.total.tokens.used - self._beyond_share(key, lambda each: each.tokens, limit)
        mine = self._occupancies_of(key).tokens
        if waiting and waiting + tokens > limit and not self._is_reserved(mine.used + tokens, waiting + tokens, limit):
            detail = f"{waiting} prompt tokens are waiting and this request has {tokens} (--max-queued-tokens {limit})"
            raise self._full("queued_tokens", self.total.tokens, detail)
        self._check_share(mine, mine.used, tokens, limit, 0, "prompt tokens", "--max-queued-tokens")

    def check_kv(self, key: Key, tokens: int, queued: int, sequences: int) -> None:
        """Check the KV tokens that a request may need in addition to all accepted ones, unless a slot is free for it.

        `queued` is the number of queued sequences with the request's own, which are `sequences`.
        """
        info = self._info()
        if info is None or queued <= self._free_slots(key, sequences):
            return
        capacity = info.num_kv_blocks * info.block_size
        limit = int(capacity * self.limits.kv_ratio)
        used = self.total.kv.used - self._beyond_share(key, lambda each: each.kv, limit)
        mine = self._occupancies_of(key).kv
        if used and used + tokens > limit and not self._is_reserved(mine.used + tokens, used + tokens, limit):
            detail = (
                f"accepted requests may need {used} tokens of KV cache and this one {tokens}; at most "
                f"{limit} (--max-kv-commitment {self.limits.kv_ratio:g} times {capacity})"
            )
            raise self._full("kv_commitment", self.total.kv, detail)
        self._check_share(mine, mine.used, tokens, limit, 0, "KV tokens", "--max-kv-commitment")

    def answered(self, tokens: int) -> None:
        """Note how many tokens a complete answer had."""
        self._answers.append(tokens)

    def expected_tokens(self, max_tokens: int) -> int:
        """Return the most tokens that an answer with this max_tokens is expected to have."""
        return min(max_tokens, max(self._answers))

    def forget_others(self, names: Set[str]) -> None:
        """Drop the state of keys other than these, unless they have requests or a token bucket that is not full.

        Called whenever the key file may have changed: a removed key may still have running requests.
        """
        self._by_key = {name: each for name, each in self._by_key.items() if name in names or not each.unused}
        self._drop_unused()
        self._meters.forget_others(names)

    def _drop_unused(self) -> None:
        self._in_use = {name: each for name, each in self._in_use.items() if not each.unused}

    def _occupancies_of(self, key: Key) -> Occupancies:
        if (found := self._by_key.get(key.name)) is None:
            found = self._by_key[key.name] = Occupancies(self._clock)
        self._in_use[key.name] = found
        return found

    def _beyond_share(self, key: Key, kind: Callable[[Occupancies], Occupancy], limit: int) -> int:
        """Return by how much other keys together exceed their shares of `limit`: one request may exceed a share."""
        share = self._share(limit)
        if not self._several_keys() or kind(self.total).used <= share:
            return 0
        self._drop_unused()
        return sum(max(0, kind(each).used - share) for name, each in self._in_use.items() if name != key.name)

    def _is_reserved(self, own: int, total: int, limit: int) -> bool:
        """Return True if a key may come to `own` although all keys together then exceed a limit, by coming to `total`.

        Otherwise a few keys that use their full shares would leave no room for a key with a small request.
        """
        return self._several_keys() and own <= limit // RESERVED_PARTS and total <= 2 * limit

    def _share(self, limit: int) -> int:
        return max(1, int(limit * self.limits.key_share))

    def _check_share(self, mine: Occupancy, own: int, more: int, limit: int, free: int, what: str, flag: str) -> None:
        """Check that the key's present amount `own` and `more` are at most its share of `limit`, plus `free`."""
        if not own or not self._several_keys():
            return
        share = self._share(limit)
        if own + more > share + free:
            detail = (
                f"{own} {what} of this key are waiting and this request has {more}; a key may have {share} "
                f"(--max-key-share {self.limits.key_share:g} of {flag})"
            )
            raise RefusedError(429, "key_share", detail, retry_after(mine.seconds_to_free(own)))

    def _check_deadline(self, key: Key, priority: int, seconds_left: float) -> None:
        """Reject at once a request that would wait longer than its timeout or --max-queue-seconds.

        Of the waiting requests only those of its own key are counted, and of these not the less urgent ones, as it may
        overtake all others.
        """
        lanes = self.lanes.items()
        waiting = sum(count for (name, number), count in lanes if name == key.name and number <= priority)
        ahead = waiting - self._in_prefill
        expected = self.total.requests.seconds_to_free(ahead) if ahead > 0 else None
        most = min(seconds_left, self.limits.queue_seconds)
        if expected is not None and expected * _CAUTION > most:
            limit = "its timeout is" if seconds_left <= self.limits.queue_seconds else "--max-queue-seconds is"
            detail = (
                f"the {ahead} requests before this one may take {min(expected * _CAUTION, _DAY):.0f} s "
                f"and {limit} {most:.3g} s"
            )
            raise RefusedError(503, "deadline", detail, retry_after(expected - most / _CAUTION))

    def _seconds_to_slot(self) -> float | None:
        """Return the seconds until one of the accepted sequences has ended, judged by the KV tokens that are freed."""
        sequences = self.begun + self.total.requests.used
        return self.total.kv.seconds_to_free(self.total.kv.used / sequences) if sequences else None

    def _full(self, reason: Rejection, occupancy: Occupancy, detail: str) -> RefusedError:
        return RefusedError(503, reason, detail, retry_after(occupancy.seconds_to_free(occupancy.used)))
