"""How much memory compiled grammars take: those that requests have, by tenant (API key), and those that are kept."""

from __future__ import annotations

from collections import Counter, OrderedDict

from llguidance import LLMatcher

_LEAST_BYTES, _BYTES_A_CHARACTER = 200 << 10, 200
"""The memory of a compiled grammar is estimated as the most that was seen for one of its length: llguidance does not
say it. Schemas of tools take 30 to 80 bytes a character, a schema of 1,500 alternatives 200."""
TENANT_BYTES = 96 << 20
"""What the grammars of one tenant's requests may take. A grammar beyond that is compiled when others have ended."""
KEPT_BYTES = 64 << 20
"""What compiled grammars that are kept for the next request may take."""


def estimated_bytes(grammar: str) -> int:
    """The memory of a compiled grammar."""
    return _LEAST_BYTES + _BYTES_A_CHARACTER * len(grammar)


class GrammarsInUse:
    """The grammars that requests have, each counted once for each tenant."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()

    def take(self, tenant: str, grammar: str) -> bool:
        """Count a request's grammar; False, and nothing is counted, if the tenant has no room for another one."""
        more = 0 if (tenant, grammar) in self._requests else estimated_bytes(grammar)
        if more and self._bytes[tenant] and self._bytes[tenant] + more > TENANT_BYTES:
            return False
        self._requests[tenant, grammar] += 1
        self._bytes[tenant] += more
        return True

    def give_back(self, tenant: str, grammar: str) -> None:
        """A request that was counted has ended."""
        self._requests[tenant, grammar] -= 1
        if not self._requests[tenant, grammar]:
            del self._requests[tenant, grammar]
            self._bytes[tenant] -= estimated_bytes(grammar)
        if not self._bytes[tenant]:
            del self._bytes[tenant]


class KeptGrammars:
    """Compiled grammars for the next request that asks for the same, each with the tenant that asked for it last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, LLMatcher]] = OrderedDict()
        self._bytes: Counter[str] = Counter()

    def pop(self, grammar: str) -> LLMatcher | None:
        """The compiled grammar, if it is kept; it is not from now on."""
        if (found := self._kept.pop(grammar, None)) is None:
            return None
        tenant, matcher = found
        self._bytes[tenant] -= estimated_bytes(grammar)
        return matcher

    def keep(self, tenant: str, grammar: str, matcher: LLMatcher) -> None:
        """Keep one; for it, those go that the tenant with most has not asked for the longest."""
        self._kept[grammar] = tenant, matcher
        self._bytes[tenant] += estimated_bytes(grammar)
        while self._bytes.total() > KEPT_BYTES and len(self._kept) > 1:
            [(most, _)] = self._bytes.most_common(1)
            self.pop(next(text for text, (owner, _) in self._kept.items() if owner == most))
