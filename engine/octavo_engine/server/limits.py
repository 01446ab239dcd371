"""Admission: what waits is bounded by four budgets, and who is turned away learns when to come back.

- Queued requests: sequences that were accepted and have not begun to answer, less those that the engine is reading.
- Queued prefill tokens: the prompt tokens of the sequences that have not begun to answer.
- KV commitment: the KV tokens that accepted, unfinished sequences may come to need: prompt and answer. An answer counts
  with its max_tokens, but no more than the longest of the latest answers had: few use what they may. Whoever finds a
  free seat need not fit: nobody is refused who would not wait.
- Key share: what one of several API keys takes of each of these three, others being there or not, so that there is room
  when they come.

What has begun, preempted requests included, is never pushed out by new work. One request alone is never too large.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from octavo_engine.core.step import SchedulerStats
from octavo_engine.engine.info import EngineInfo
from octavo_engine.server.auth import Key
from octavo_engine.server.budget import Budget
from octavo_engine.server.key_limits import KeyLimits, KeyMeter
from octavo_engine.server.refusal import RefusedError, Rejection, retry_after

_ANSWERS = 128
"""Answers whose longest is what a new one is expected to reach."""
_DAY = 86_400.0
_FIRST_GUESS = 512
"""Tokens of an answer, before there was any."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The settings of the four budgets."""

    requests: int
    """--max-queued-requests."""
    tokens: int
    """--max-queued-tokens."""
    kv_ratio: float = 4.0
    """--max-kv-commitment."""
    key_share: float = 1.0
    """--max-key-share; 1 where there are no keys to share."""


@dataclass(slots=True)
class Books:
    """What is taken of the budgets, by everybody or by one key."""

    clock: Callable[[], float]
    requests: Budget = field(init=False)
    tokens: Budget = field(init=False)
    kv: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.requests, self.tokens, self.kv = Budget(self.clock), Budget(self.clock), Budget(self.clock)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is taken."""
        return self.requests.used == self.tokens.used == self.kv.used == 0


@dataclass(slots=True, eq=False)
class Ticket:
    """One HTTP request's place: whose it is, how many of its sequences wait or run, and what each takes."""

    admission: Admission
    key: Key
    priority: int
    meter: KeyMeter
    books: tuple[Books, Books]
    waiting: int
    """Sequences that have not begun to answer."""
    begun: int = 0
    """Sequences that have begun and not ended."""
    tokens_each: int = 0
    kv_each: int = 0
    accepted: bool = False
    """Whether it passed all of admission."""
    _left: bool = False

    def add_tokens(self, prompt: int, answer: int) -> None:
        """Count the prompt tokens of all sequences together, and the max_tokens of each; RefusedError if too many."""
        kv = prompt + self.waiting * self.admission.likely(answer)
        self.admission.check_tokens(self.key, prompt)
        self.admission.check_kv(self.key, kv, self.admission.queued)
        self.meter.tokens.take(prompt)
        self.accepted = True
        self.tokens_each, self.kv_each = prompt // self.waiting, kv // self.waiting
        for books in self.books:
            books.tokens.take(self.tokens_each * self.waiting)
            books.kv.take(self.kv_each * self.waiting)

    def begin(self) -> None:
        """One of the sequences has given its first token."""
        self._leave_queue(1, served=True)
        self.begun += 1
        self.admission.begun += 1

    def wrote(self, tokens: int) -> None:
        """So many tokens of an answer have come."""
        self.meter.tokens.take(tokens)

    def end(self, begun: bool) -> None:
        """One of the sequences has ended; `begun` says whether it had given its first token."""
        if begun:
            self.begun -= 1
            self.admission.begun -= 1
        else:
            self._leave_queue(1, served=False)
        self._give_back_kv(1, served=begun)

    def leave(self) -> None:
        """The request has ended, whatever way, and with it all its sequences. May be called more than once."""
        if self._left:
            return
        self._left = True
        self._give_back_kv(self.waiting + self.begun, served=False)
        self._leave_queue(self.waiting, served=False)
        self.admission.begun -= self.begun
        self.begun = 0
        self.meter.end(accepted=self.accepted)

    def _leave_queue(self, sequences: int, *, served: bool) -> None:
        self.waiting -= sequences
        self.admission.leave_lane(self.key, self.priority, sequences)
        for books in self.books:
            books.requests.give_back(sequences, served=served)
            books.tokens.give_back(sequences * self.tokens_each, served=served)

    def _give_back_kv(self, sequences: int, *, served: bool) -> None:
        for books in self.books:
            books.kv.give_back(sequences * self.kv_each, served=served)


class Admission:
    """The door: judges what comes by what this process knows. Every check raises RefusedError."""

    def __init__(
        self,
        limits: QueueLimits,
        stats: Callable[[], SchedulerStats],
        info: Callable[[], EngineInfo | None],
        clock: Callable[[], float] = time.monotonic,
        several_keys: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limits = limits
        self.all = Books(clock)
        self.begun = 0
        """Sequences that have begun to answer and have not ended."""
        self.lanes: Counter[tuple[str, int]] = Counter()
        """Sequences that have not begun, by key and priority."""
        self._stats, self._info, self._clock, self._several_keys = stats, info, clock, several_keys
        self._by_key: dict[str, Books] = {}
        self._meters = KeyLimits(clock)
        self._answers = deque([_FIRST_GUESS], maxlen=_ANSWERS)

    @property
    def queued(self) -> int:
        """Sequences that wait for a seat."""
        return max(0, self.all.requests.used - self._reading)

    @property
    def _reading(self) -> int:
        """Sequences that have a seat and no token yet."""
        return max(0, self._stats().running - self.begun)

    @property
    def _free_seats(self) -> int:
        stats, info = self._stats(), self._info()
        if info is None or stats.waiting:
            return 0
        return max(0, (stats.running_limit or info.max_num_seqs) - stats.running)

    def look(self, key: Key) -> None:
        """Judge a request of which nothing is known but whose it is: not even the smallest may find a place."""
        self._meters.meter(key).look(key)
        self.check_requests(key, 1)
        self.check_tokens(key, 1)
        self.check_kv(key, 1, self.queued + 1)

    def enter(self, key: Key, sequences: int, priority: int = 0, seconds_left: float = float("inf")) -> Ticket:
        """A place for a request of so many sequences that must have ended in so many seconds."""
        meter = self._meters.meter(key)
        meter.look(key)
        self.check_requests(key, sequences)
        self._check_deadline(key, priority, seconds_left)
        books = (self.all, self._books(key))
        for each in books:
            each.requests.take(sequences)
        self.lanes[key.name, priority] += sequences
        meter.begin()
        return Ticket(self, key, priority, meter, books, sequences)

    def leave_lane(self, key: Key, priority: int, sequences: int) -> None:
        """So many sequences of this key and priority do not wait any more."""
        lane = key.name, priority
        self.lanes[lane] -= sequences
        if not self.lanes[lane]:
            del self.lanes[lane]

    def check_requests(self, key: Key, sequences: int) -> None:
        """A request that is larger than the queue and all seats is welcome when none waits and there is any room."""
        free, queued, info = self._free_seats, self.queued, self._info()
        alone = queued == 0 and sequences > self.limits.requests + (info.max_num_seqs if info else 0)
        if self.limits.requests + free - queued < (1 if alone else sequences):
            detail = f"{queued} requests wait already and this one has {sequences}"
            flag = f"--max-queued-requests {self.limits.requests}"
            raise self._full("queued_requests", self.all.requests, f"{detail} ({flag})")
        mine = self._books(key).requests
        own = max(0, mine.used - self._reading)
        self._check_share(mine, own, sequences, self.limits.requests, free, "requests", "--max-queued-requests")

    def check_tokens(self, key: Key, tokens: int) -> None:
        """Judge the prompt tokens of a request by those that wait."""
        waiting, limit = self.all.tokens.used, self.limits.tokens
        if waiting and waiting + tokens > limit:
            detail = f"{waiting} prompt tokens wait already and this request has {tokens} (--max-queued-tokens {limit})"
            raise self._full("queued_tokens", self.all.tokens, detail)
        mine = self._books(key).tokens
        self._check_share(mine, mine.used, tokens, limit, 0, "prompt tokens", "--max-queued-tokens")

    def check_kv(self, key: Key, tokens: int, queued: int) -> None:
        """Judge the KV tokens that a request may come to need by all accepted ones', unless it finds a free seat.

        `queued` counts the request itself.
        """
        info = self._info()
        if info is None or queued <= self._free_seats:
            return
        capacity, used = info.num_kv_blocks * info.block_size, self.all.kv.used
        limit = int(capacity * self.limits.kv_ratio)
        if used and used + tokens > limit:
            detail = (
                f"accepted requests may come to need {used} tokens of KV cache and this one {tokens}; allowed are "
                f"{limit} (--max-kv-commitment {self.limits.kv_ratio:g} times {capacity})"
            )
            raise self._full("kv_commitment", self.all.kv, detail)
        mine = self._books(key).kv
        self._check_share(mine, mine.used, tokens, limit, 0, "KV tokens", "--max-kv-commitment")

    def answered(self, tokens: int) -> None:
        """An answer came to its end after so many tokens."""
        self._answers.append(tokens)

    def likely(self, max_tokens: int) -> int:
        """Tokens that an answer is expected to need at most."""
        return min(max_tokens, max(self._answers))

    def forget_others(self, names: Set[str]) -> None:
        """Drop what is known of all keys but these, save of those that still have requests here or a limit to wait for.

        To be called now and then, as keys are removed while they have some.
        """
        self._by_key = {name: books for name, books in self._by_key.items() if name in names or not books.at_rest}
        self._meters.forget_others(names)

    def _books(self, key: Key) -> Books:
        if (found := self._by_key.get(key.name)) is None:
            found = self._by_key[key.name] = Books(self._clock)
        return found

    def _check_share(self, mine: Budget, own: int, more: int, limit: int, free: int, what: str, flag: str) -> None:
        """`own` of `mine` are taken, `more` are asked for; `free` may be had beyond the share of `limit`."""
        if not own or not self._several_keys():
            return
        share = max(1, int(limit * self.limits.key_share))
        if own + more > share + free:
            detail = (
                f"{own} {what} of this key wait already and this request has {more}; a key may have {share} "
                f"(--max-key-share {self.limits.key_share:g} of {flag})"
            )
            raise RefusedError(429, "key_share", detail, retry_after(mine.seconds_to_free(own)))

    def _check_deadline(self, key: Key, priority: int, seconds_left: float) -> None:
        """Refuse at once what could not begin in time even if all others were behind it.

        Before it are only those of its own key and priority: of the others the scheduler may let it pass by.
        """
        ahead = self.lanes[key.name, priority] - self._reading
        seconds = self.all.requests.seconds_to_free(ahead) if ahead > 0 else None
        if seconds is not None and seconds > seconds_left:
            detail = (
                f"the {ahead} requests before this one take about {min(seconds, _DAY):.0f} s and its timeout is "
                f"{seconds_left:.3g} s"
            )
            raise RefusedError(503, "deadline", detail, retry_after(seconds - seconds_left))

    def _full(self, reason: Rejection, budget: Budget, detail: str) -> RefusedError:
        return RefusedError(503, reason, detail, retry_after(budget.seconds_to_free(budget.used)))
