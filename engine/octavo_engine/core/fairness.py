"""Who has had how much: the accounts by which tenants (API keys) share the engine.

Waiting requests are taken in deficit round robin (Shreedhar, Varghese, SIGCOMM 1995) with tokens as the measure: a
round gives each waiting tenant a quantum times its weight, and a request is admitted when its tenant's deficit covers
its prompt. Tokens that are generated are charged as they end up in answers, as in fair serving with virtual token
counters (Sheng et al., OSDI 2024), so that long answers count like long prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

QUANTUM = 512
"""Tokens a round."""
_HALF_LIFE = 10.0
"""Seconds after which recent use counts half."""
_SMALLEST_CHUNK = 64
"""Prefill tokens that even a tenant far beyond its share gets in a step that is otherwise empty."""
LEFTOVER = 16
"""Prefill tokens that it gets in any step."""


@dataclass(slots=True)
class Account:
    """One tenant that has requests here."""

    weight: float = 1.0
    deficit: float = 0.0
    """Tokens it may be served before the others' turn; negative after long answers."""
    requests: int = 0
    """Waiting and running."""
    used: float = 0.0
    """Tokens computed lately, fading away."""


class Accounts:
    """All tenants with a request that waits or runs. Forgotten when the last one has ended."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._faded_at = 0.0

    def open(self, tenant: str, weight: float) -> Account:
        """One more request of a tenant's."""
        account = self._accounts.setdefault(tenant, Account())
        account.weight = weight
        account.requests += 1
        return account

    def close(self, tenant: str) -> None:
        """One request less."""
        account = self._accounts[tenant]
        account.requests -= 1
        if account.requests == 0:
            del self._accounts[tenant]

    def __len__(self) -> int:
        return len(self._accounts)

    def __getitem__(self, tenant: str) -> Account:
        return self._accounts[tenant]

    def charge(self, tenant: str, tokens: int) -> None:
        """Tokens that were generated for a tenant."""
        account = self._accounts[tenant]
        account.deficit -= tokens
        account.used += tokens

    def computed(self, tenant: str, tokens: int) -> None:
        """Prompt tokens of a tenant in a step."""
        self._accounts[tenant].used += tokens

    def fade(self, now: float) -> None:
        """Time passes, and use is forgotten."""
        passed = now - self._faded_at
        if passed < _HALF_LIFE / 10:
            return
        self._faded_at = now
        factor = 0.5 ** (passed / _HALF_LIFE)
        for account in self._accounts.values():
            account.used *= factor

    def share(self, tenant: str) -> float:
        """What a tenant may use of anything while the others want some too, 0 to 1."""
        return self._accounts[tenant].weight / sum(account.weight for account in self._accounts.values())

    def over_share(self, tenant: str) -> bool:
        """Whether a tenant has lately used more than its share while others were here."""
        if len(self._accounts) == 1:
            return False
        total = sum(account.used for account in self._accounts.values())
        return self._accounts[tenant].used > total * self.share(tenant)

    def chunk_cap(self, tenant: str, budget: int) -> int:
        """Prefill tokens that a tenant over its share may bring a step to."""
        return max(_SMALLEST_CHUNK, int(budget * self.share(tenant)))


def next_turn(waiting: Iterable[tuple[Account, int]]) -> int:
    """The index of the account whose turn it is, of (account, tokens that its first request costs) in their order.

    If nobody's deficit suffices, as many rounds pass at once as somebody needs.
    """
    entries = list(waiting)
    while True:
        for index, (account, cost) in enumerate(entries):
            if account.deficit >= cost:
                return index
        rounds = min(math.ceil((cost - account.deficit) / (QUANTUM * account.weight)) for account, cost in entries)
        for account, _ in entries:
            account.deficit += max(1, rounds) * QUANTUM * account.weight
