"""Fair shares: tenants (API keys) share the engine by accounts of the tokens that each was served.

Waiting requests are taken in deficit round robin (Shreedhar, Varghese, SIGCOMM 1995) with tokens as the measure: a
round gives each waiting tenant a quantum times its weight, and a request is admitted when its tenant's deficit covers
its prompt. Tokens that are generated are charged while answers grow, as in fair serving with virtual token
counters (Sheng et al., OSDI 2024), so that long answers count like long prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

QUANTUM = 512  # tokens a round
FOR_NEW = 16  # prefill tokens of a step that begun prompts leave to waiting requests, if there are several tenants
LEFTOVER = 8  # prefill tokens that even a heavy tenant gets in every step; on a CPU 8 take little longer than 1
_HALF_LIFE = 5.0  # seconds after which use counts half
_FORGOTTEN = 10.0  # seconds after its last request for which a tenant still counts
_LITTLE = QUANTUM  # tokens of recent use up to which no tenant is heavy
_RESERVE = 0.25  # the most of --max-num-seqs and of memory that a heavy tenant must leave free


@dataclass(slots=True)
class Account:
    """The account of a tenant that has requests in the engine, or had some lately."""

    weight: float = 1.0
    deficit: float = 0.0  # tokens that the tenant may be served before its turn ends; negative after long answers
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

    def open(self, tenant: str, weight: float) -> None:
        """Count one more request of a tenant."""
        account = self._accounts.setdefault(tenant, Account(weight=0.0))
        self._weights += weight - account.weight
        account.weight = weight
        account.requests += 1

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

    def generated(self, tenant: str, tokens: int) -> None:
        """Charge a tenant for tokens of its answers: in its deficit and in its use."""
        self._accounts[tenant].deficit -= tokens
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

    def busy(self, tenant: str) -> bool:
        """Return True if a tenant has lately used more than a little; several such tenants may fill all steps."""
        return self._accounts[tenant].used > _LITTLE

    def heavy(self, tenant: str) -> bool:
        """Return True if a tenant has lately used clearly more than its share of all tokens."""
        share = self.share(tenant)
        used = self._accounts[tenant].used
        return self.several and used > _LITTLE and used > self._used * min(1.2 * share, (1 + share) / 2)

    def light_cap(self, tenant: str, budget: int) -> int:
        """Return how many prompt tokens a tenant that is not heavy may have in a step; all if there is no other."""
        return max(min(QUANTUM, (budget + 1) // 2), int(budget * self.share(tenant))) if self.several else budget

    def heavy_cap(self, tenant: str, budget: int, light_tokens: int, doubling_tokens: int) -> int:
        """Return how many prompt tokens a heavy tenant may have in a step with `light_tokens` of others' prompts.

        It may at most double the step's time (`doubling_tokens`), so that a request that arrives during the step waits
        at most twice as long, and it never gets more than its share of the budget, beyond LEFTOVER.
        """
        if light_tokens:
            return LEFTOVER
        return max(LEFTOVER, min(doubling_tokens, int(budget * self.share(tenant))))

    def reserve(self, tenant: str) -> float:
        """Return the part of --max-num-seqs and of memory that a heavy tenant's new request must leave free."""
        return min(_RESERVE, 1 - self.share(tenant)) if self.heavy(tenant) else 0.0


def next_turn(waiting: Iterable[tuple[Account, int]]) -> int:
    """Return the index of the account that is next, given (account, tokens that its first request costs)."""
    entries = list(waiting)
    while True:
        for index, (account, cost) in enumerate(entries):
            if account.deficit >= cost:
                return index
        rounds = min(math.ceil((cost - account.deficit) / (QUANTUM * account.weight)) for account, cost in entries)
        for account, _ in entries:
            account.deficit += max(1, rounds) * QUANTUM * account.weight  # until the nearest to its turn has it
