"""`python -m bench.hostile.attacker PORT KEY SECONDS ATTACK`: one attack, in a process of its own; prints its outcomes.

In one process the attack would hold up the honest user whose waits are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

import uvloop

from bench.hostile.attacks import ATTACKS
from bench.hostile.wire import Target


async def _attack(target: Target, name: str, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):  # what waits for an answer then has waited long enough
        async with asyncio.timeout(seconds + 1):
            await ATTACKS[name](target)


def main() -> None:
    """Entry point."""
    port, key, seconds, name = sys.argv[1:]
    target = Target(int(port), key, time.monotonic() + float(seconds))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_attack(target, name, float(seconds)))
    print(json.dumps(target.outcomes))


if __name__ == "__main__":
    main()
