"""Attacks by several API keys at once, each of which stays within its own limits."""

from __future__ import annotations

from dataclasses import replace

from bench.hostile.kinds import Attack
from bench.hostile.wire import Target

KEYS = 8
"""The number of the attackers' keys, besides the one of all other attacks."""


def by_several_keys(attack: Attack) -> Attack:
    """Return the same attack with a key for each request that is chosen at random among KEYS."""

    async def attack_with_keys(target: Target) -> None:
        with_keys = replace(target, keys=KEYS)
        try:
            await attack(with_keys)
        finally:  # an attack whose time is over is cancelled
            target.slowest = max(target.slowest, with_keys.slowest)

    return attack_with_keys
