"""Limits the memory of compiled grammars: those of one tenant's (API key's) requests, and those kept for later ones."""

from __future__ import annotations

from collections import Counter, OrderedDict

from llguidance import LLMatcher

_LEAST_BYTES, _BYTES_A_CHARACTER = 200 << 10, 200
"""The estimated memory of a compiled grammar, which llguidance does not report: the largest that was measured for its
length. Schemas of tools take 30 to 80 bytes a character, a schema of 1,500 alternatives 200."""
TENANT_BYTES = 96 << 20
"""The most memory for the grammars of one tenant's requests. A grammar beyond that waits until others have ended."""
ALL_BYTES = 192 << 20
"""The most memory for the grammars of all tenants' requests, of which each tenant may have one in any case."""
KEPT_BYTES = 64 << 20
"""The most memory for compiled grammars that are kept for later requests."""


def estimated_bytes(grammar: str) -> int:
    """Return the estimated memory of a compiled grammar."""
    return _LEAST_BYTES + _BYTES_A_CHARACTER * len(grammar)


class GrammarsInUse:
    """The memory of the grammars that requests have. Each grammar counts once for each tenant."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()

    def take(self, tenant: str, grammar: str) -> bool:
        """Count a request's grammar and return True; False, without counting it, if there is no memory for it now."""
        more, mine = 0 if (tenant, grammar) in self._requests else estimated_bytes(grammar), self._bytes[tenant]
        if more and mine and (mine + more > TENANT_BYTES or self._bytes.total() + more > ALL_BYTES):
            return False
        self._requests[tenant, grammar] += 1
        self._bytes[tenant] += more
        return True

    def bytes_of(self, tenant: str) -> int:
        """Return the memory that a tenant's grammars take."""
        return self._bytes[tenant]

    def release(self, tenant: str, grammar: str) -> None:
        """Note that a request whose grammar was counted has ended."""
        self._requests[tenant, grammar] -= 1
        if not self._requests[tenant, grammar]:
            del self._requests[tenant, grammar]
            self._bytes[tenant] -= estimated_bytes(grammar)
        if not self._bytes[tenant]:
            del self._bytes[tenant]


class KeptGrammars:
    """Compiled grammars that are kept for later requests, each with the tenant that used it last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, LLMatcher]] = OrderedDict()
        self._bytes: Counter[str] = Counter()

    def pop(self, grammar: str) -> LLMatcher | None:
        """Remove a compiled grammar and return it; None if it is not kept."""
        if (found := self._kept.pop(grammar, None)) is None:
            return None
        tenant, matcher = found
        self._bytes[tenant] -= estimated_bytes(grammar)
        return matcher

    def keep(self, tenant: str, grammar: str, matcher: LLMatcher) -> None:
        """Keep a compiled grammar. If all take too much memory, drop the oldest of the tenant that takes the most."""
        self._kept[grammar] = tenant, matcher
        self._bytes[tenant] += estimated_bytes(grammar)
        while self._bytes.total() > KEPT_BYTES and len(self._kept) > 1:
            [(most, _)] = self._bytes.most_common(1)
            self.pop(next(text for text, (owner, _) in self._kept.items() if owner == most))
