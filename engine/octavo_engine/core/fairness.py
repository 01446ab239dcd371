"""Fair shares: tenants (API keys) share the engine by accounts of the tokens that each was served.

Waiting requests are taken by self-clocked fair queueing (Golestani, INFOCOM 1994) with tokens as the measure: the next
one is that of the tenant that will have been served least by weight, and a tenant that comes begins with as much as the
one whose turn it is. Answers count while they grow, as in fair serving with virtual token counters (Sheng et al., OSDI
2024), so that long answers count like long prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.core.request_state import RequestState

QUANTUM = 512  # tokens by which a tenant with a single request may be ahead, and a longer prompt's in its place
FOR_NEW = 16  # prefill tokens of a step that begun prompts leave to waiting requests, if there are several tenants
LEFTOVER = 8  # prefill tokens that even a heavy tenant gets in every step; on a CPU 8 take little longer than 1
_HALF_LIFE = 5.0  # seconds after which use counts half
_FORGOTTEN = 10.0  # seconds after its last request for which a tenant still counts
_LITTLE = QUANTUM  # tokens of recent use up to which no tenant is heavy
_MOST_KEPT = 4  # places kept for tenants with one request: a 16th of all, one for every 4 tenants, no more than these
_RESERVE = 0.25  # the most of --max-num-seqs and of memory that a heavy tenant must leave free


@dataclass(slots=True)
class Account:
    """The account of a tenant that has requests in the engine, or had some lately."""

    weight: float = 1.0
    served: float = 0.0  # tokens served by weight, on a scale that all tenants share
    requests: int = 0  # waiting and running
    used: float = 0.0  # tokens computed lately, decaying
    left_at: float = 0.0  # when its last request ended, as of the last `decay`


class Accounts:
    """The accounts of all tenants that have requests, or had some lately.

    A tenant is *heavy* while it has used clearly more than its share of all recent use. Then its prompts come last in a
    step and are cut short, and it must leave part of the engine free, so that a new tenant's request waits little.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._decayed_at = 0.0
        self._weights = 0.0
        self._used = 0.0
        self._turn = 0.0  # what a tenant was served that would have had its share of all tokens

    def open(self, tenant: str, weight: float) -> bool:
        """Count one more request of a tenant; return True if it is the only one."""
        account = self._accounts.setdefault(tenant, Account(weight=0.0))
        self._weights += weight - account.weight
        account.weight = weight
        account.requests += 1
        return account.requests == 1

    def close(self, tenant: str) -> None:
        """Count one request less of a tenant."""
        account = self._accounts[tenant]
        account.requests -= 1
        account.left_at = self._decayed_at

    def __getitem__(self, tenant: str) -> Account:
        return self._accounts[tenant]

    def check_integrity(self, requests: int) -> None:
        """Raise RuntimeError unless the tenants together have this many `requests`."""
        if sum(account.requests for account in self._accounts.values()) != requests:
            raise RuntimeError("tenants' accounts count more or fewer requests than there are")

    @property
    def several(self) -> bool:
        """True if more than one tenant has an account."""
        return len(self._accounts) > 1

    def wait(self, tenant: str) -> None:
        """Let a tenant that waited for nothing take its turn from now on: it saves nothing up, but keeps its debt."""
        self._accounts[tenant].served = max(self._accounts[tenant].served, self._turn)

    def asks_singly(self, state: RequestState) -> bool:
        """Return True if a request is the only one of its tenant, and was when it came, as those of one user are."""
        return state.alone and self._accounts[state.tenant].requests == 1

    def place(self, state: RequestState, tokens: int) -> float:
        """Return the place of a waiting request, for which its tenant pays `tokens`; the lowest is next."""
        account = self._accounts[state.tenant]
        return account.served + min(tokens, QUANTUM) / account.weight - QUANTUM * self.asks_singly(state)

    def admitted(self, tenant: str, tokens: int) -> None:
        """Charge a tenant the tokens of a request whose turn it is."""
        account = self._accounts[tenant]
        self._turn = max(self._turn + tokens / self._weights, account.served)
        account.served += tokens / account.weight

    def generated(self, tenant: str, tokens: int) -> None:
        """Charge a tenant for tokens of its answers: as served, and in its use."""
        self._accounts[tenant].served += tokens / self._accounts[tenant].weight
        self._turn += tokens / self._weights
        self.computed(tenant, tokens)

    def computed(self, tenant: str, tokens: int) -> None:
        """Count computed tokens as a tenant's use."""
        self._accounts[tenant].used += tokens
        self._used += tokens

    def due(self, now: float) -> bool:
        """Return True if it is time to call `decay`, after charging the tokens generated since the last call."""
        return now - self._decayed_at >= _HALF_LIFE / 10

    def decay(self, now: float) -> None:
        """Let use decay as time passes, and forget tenants that have left."""
        factor = 0.5 ** ((now - self._decayed_at) / _HALF_LIFE)
        self._decayed_at = now
        for tenant, account in list(self._accounts.items()):
            account.used *= factor
            if account.requests == 0 and now - account.left_at >= _FORGOTTEN:
                del self._accounts[tenant]
        self._weights = sum(account.weight for account in self._accounts.values())
        self._used = sum(account.used for account in self._accounts.values())

    def share(self, tenant: str) -> float:
        """Return the share of each resource that a tenant may use while others want some too, 0 to 1."""
        return self._accounts[tenant].weight / self._weights

    def heavy(self, tenant: str) -> bool:
        """Return True if a tenant has lately used clearly more than its share of all tokens."""
        share, used = self.share(tenant), self._accounts[tenant].used
        return self.several and used > _LITTLE and used > self._used * min(1.2 * share, (1 + share) / 2)

    def reserve(self, tenant: str) -> float:
        """Return the part of --max-num-seqs and of memory that a heavy tenant's new request must leave free."""
        return min(_RESERVE, 1 - self.share(tenant)) if self.heavy(tenant) else 0.0

    def kept(self, limit: int) -> int:
        """Return how many of `limit` running requests are kept for tenants with a single request."""
        return min(_MOST_KEPT, limit // 16, len(self._accounts) // 4)

    def most_running(self, state: RequestState, limit: int) -> int:
        """Return how many of `limit` requests may run once a waiting one has begun."""
        kept = 0 if self.asks_singly(state) else self.kept(limit)
        return max(1, min(limit - kept, int(limit * (1 - self.reserve(state.tenant)))))
