"""The admission policy: chooses the next request, how much of a prompt a step holds, and the requests to preempt.

It reads the requests' states and counts tenants' use; `core.planner` alone assigns rows and blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from octavo_engine.core.fairness import LEFTOVER, QUANTUM, Accounts
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step_cost import StepCost
from octavo_engine.core.waiting_queue import WaitingQueue

_LOOK_AHEAD = 4  # waiting requests without enough free blocks that an admission round passes over
_TRY_EVERY = 8
"""Steps after which a blocked request is tried again though no block was freed: the cache may have its prefix now."""


class AdmissionPolicy:
    """The rules for tenants, ageing, caps, skips and reservations, with the queue of waiting requests."""

    def __init__(self, settings: SchedulerSettings, cost: StepCost, memory_tokens: float) -> None:
        """Start without tenants. The KV memory holds `memory_tokens`; infinitely many if it holds states alone."""
        self.accounts = Accounts()
        self.waiting = WaitingQueue(settings, self.accounts)
        self._settings = settings
        self._cost = cost
        self._memory_tokens = memory_tokens
        self.adapter_is_ready: Callable[[str], bool] = lambda _: True
        """Whether a request with this adapter may begin now; an engine that serves adapters sets this."""

    def charge(self, requests: Iterable[RequestState]) -> None:
        """Charge tenants for the tokens generated since the last charge."""
        for state in requests:
            self.accounts.generated(state.tenant, state.num_output - state.charged)
            state.charged = state.num_output

    def tick(self, now: float, running: Iterable[RequestState]) -> None:
        """Let earlier use decay, so that it counts less against a tenant as time passes."""
        if self.accounts.due(now):
            self.charge(running)
            self.accounts.decay(now)

    def order_prompts(
        self, prefilling: Collection[RequestState], now: float
    ) -> tuple[list[RequestState], list[RequestState]]:
        """Split the begun prompts into those that go on first and those that go on after new requests are admitted.

        The latter are those of heavy tenants, and those outranked: another request, waiting or prefilling, has a more
        important priority and, with both requests' ages counted, still more important. Prompts age after admission too.
        """
        levels = self.waiting.levels(now) if prefilling else {}
        for state in prefilling:
            priority = self.waiting.priority(state)
            levels[priority] = min(levels.get(priority, priority), self.waiting.level(state, now))
        first, later = list[RequestState](), list[RequestState]()
        for state in prefilling:
            priority, level = self.waiting.priority(state), self.waiting.level(state, now)
            outranked = any(other < priority and its_level < level for other, its_level in levels.items())
            (later if outranked or self.accounts.heavy(state.tenant) else first).append(state)
        return sorted(first, key=lambda state: self.accounts[state.tenant].used / state.request.weight), later

    def prompt_limit(self, tenant: str, planned: Mapping[str, int], room: int) -> int:
        """Return how many prompt tokens of a tenant a step with `planned` tokens and `room` for more may still get."""
        budget = sum(planned.values()) + room
        if self.accounts.heavy(tenant):
            light_tokens = sum(tokens for other, tokens in planned.items() if not self.accounts.heavy(other))
            cap = LEFTOVER if light_tokens else self._heavy_cap(tenant, budget)
        else:
            cap = self._light_cap(tenant, budget) if self.accounts.several else budget
        return cap - planned.get(tenant, 0)

    def _light_cap(self, tenant: str, budget: int) -> int:
        """Return how many prompt tokens a tenant that is not heavy may have in a step, if there are others."""
        return max(min(QUANTUM, (budget + 1) // 2), int(budget * self.accounts.share(tenant)))

    def _heavy_cap(self, tenant: str, budget: int) -> int:
        """Return how many prompt tokens a heavy tenant may have in a step without prompts of tenants that are not.

        It may at most double the step's time, so that a request that arrives during the step waits at most twice as
        long, and it never gets more than its share of the budget, beyond LEFTOVER.
        """
        share = int(budget * self.accounts.share(tenant))
        return max(LEFTOVER, min(self._cost.doubling_tokens(budget), share))

    def worth_trying(self, state: RequestState, unreserved: Sequence[int], running: int, step: int) -> bool:
        """Return True if blocks were freed since the last try failed, or every few steps, because shares change."""
        if running == 0 or step % _TRY_EVERY == 0 or not state.blocks_wanted:
            return True
        return all(have >= want for have, want in zip(unreserved, state.blocks_wanted, strict=True))

    def preemptible(self, state: RequestState) -> bool:
        """Return True if a request may still be preempted; if not, it runs to its end with all its blocks reserved."""
        return state.preemptions < self._settings.max_preemptions

    def yielding_to(self, waiting: RequestState, running: Iterable[RequestState], step: int) -> list[RequestState]:
        """Return running requests to preempt for a waiting one: less important, or of a tenant over its share.

        To preempt for its share, the waiting request must stay within its tenant's, or it would be preempted in turn. A
        request for which preemption has failed tries it only every few steps.
        """
        most = self._settings.max_num_seqs * self.accounts.share(waiting.tenant) if self.accounts.several else 0.0
        # With a share of less than one place, the request alone would be more than its tenant's share.
        if self._settings.policy != "priority" and most < 1:
            return []
        if waiting.preemption_failed and step % _TRY_EVERY:
            return []
        requests = [state for state in running if self.preemptible(state)]
        held = dict.fromkeys((waiting.tenant, *(state.tenant for state in requests)), 0.0)
        for state in (waiting, *requests):  # each one's share: of memory or of running requests, whichever is more
            held[state.tenant] += max(state.known / self._memory_tokens, 1 / self._settings.max_num_seqs)
        over = {tenant for tenant, share in held.items() if share > self.accounts.share(tenant)}
        priority, ours = self.waiting.priority, self.waiting.priority(waiting)
        may_take = waiting.tenant not in over
        return [r for r in requests if ours < priority(r) or (ours == priority(r) and may_take and r.tenant in over)]


class AdmissionRound:
    """One step's admissions: decides which waiting request is tried next, given the results of earlier tries."""

    def __init__(self, policy: AdmissionPolicy, max_skips: int, now: float, over_share: set[str]) -> None:
        """Begin a round at `now`, in which the tenants in `over_share`, to which others may be added, get no more."""
        self._policy = policy
        self._max_skips = max_skips
        self._order = policy.waiting.order(now)
        self._over_share = over_share
        self._blocked: list[RequestState] = []
        self._closed = False

    def next(self) -> RequestState | None:
        """Return the next request to try to admit; None if no more are to be tried in this step."""
        if self._closed or len(self._blocked) >= _LOOK_AHEAD:
            return None
        return self._policy.waiting.next(self._order, self._passes_over, self._over_share)

    def _passes_over(self, state: RequestState) -> bool:
        """Return True if this round skips a request: too few blocks are free, or its adapter is not ready."""
        adapter = state.request.adapter
        return state in self._blocked or (adapter != "" and not self._policy.adapter_is_ready(adapter))

    def admitted(self) -> None:
        """Note that a request was admitted before blocked ones, none of which may be skipped too often."""
        for state in self._blocked:
            state.skipped += 1
            self._closed = self._closed or state.skipped >= self._max_skips

    def blocked(self, state: RequestState, *, may_run: bool) -> None:
        """Note that a request does not fit now. Others may pass it for a while, a heavy tenant's own may not."""
        if self._policy.accounts.heavy(state.tenant) or (not may_run and len(self._order) == 1):
            self._over_share.add(state.tenant)
        elif state.skipped >= self._max_skips:
            self._closed = True
        else:
            self._blocked.append(state)
