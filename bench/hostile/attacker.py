"""Runs one attack, prints how its requests ended: `python -m bench.hostile.attacker PORT KEY SECONDS ATTACK [alone]`.

It is a process of its own, as the attack would otherwise delay the honest user whose waits are measured.
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
    with contextlib.suppress(TimeoutError):  # requests that still wait for an answer are abandoned
        async with asyncio.timeout(seconds + 1):
            await ATTACKS[name](target)


def main() -> None:
    """Entry point."""
    port, key, seconds, name, *alone = sys.argv[1:]
    target = Target(int(port), key, time.monotonic() + float(seconds), alone=bool(alone))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_attack(target, name, float(seconds)))
    print(json.dumps({"outcomes": target.outcomes, "slowest": target.slowest}))


if __name__ == "__main__":
    main()
