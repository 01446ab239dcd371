"""Eviction: each policy by itself, the time to live, and their effect on prefix cache hits."""

from __future__ import annotations

import random

import pytest
from simulation import add, make_engine, make_request, make_state, run, step

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.eviction import POLICIES
from octavo_engine.core.eviction.lfu import LeastFrequentlyUsed
from octavo_engine.core.eviction.policy import EvictionPolicy
from octavo_engine.core.prefix_cache import PrefixCache, extend_hashes


def drain(policy: EvictionPolicy) -> list[int]:
    """All blocks in the order in which they go."""
    return [policy.evict() for _ in range(len(policy.ranks))]


def test_lru_gives_away_what_has_rested_longest() -> None:
    policy = POLICIES["lru"]()
    for block in (3, 1, 2):
        policy.release(block, uses=block, priority=block)
    policy.remove(3)
    policy.release(3, uses=0, priority=0)
    assert sorted(policy.ranks) == [1, 2, 3]
    assert drain(policy) == [1, 2, 3]


def test_lfu_gives_away_what_was_found_least_and_the_oldest_of_those() -> None:
    policy = POLICIES["lfu"]()
    for block, uses in ((1, 5), (2, 0), (3, 1), (4, 0)):
        policy.release(block, uses, priority=0)
    assert drain(policy) == [2, 4, 3, 1]


def test_lfu_ages_so_that_what_was_popular_long_ago_goes_in_the_end() -> None:
    """Each eviction lifts newcomers: after four of them with one use, the fifth ranks like the old block with five."""
    policy = POLICIES["lfu"]()
    policy.release(0, uses=5, priority=0)
    gone = []
    for block in range(1, 20):
        policy.release(block, uses=1, priority=0)
        gone.append(policy.evict())
    # Newcomers' ranks are 1, 2, 3, 4, 5 (age + 1), and the old block of rank 5 rested before the last of these.
    assert gone[:6] == [1, 2, 3, 4, 0, 5]


def test_priority_gives_away_what_the_least_important_used_and_the_oldest_of_those() -> None:
    policy = POLICIES["priority"]()
    for block, priority in ((1, -1), (2, 5), (3, 0), (4, 5)):
        policy.release(block, uses=9 - block, priority=priority)
    assert drain(policy) == [2, 4, 3, 1]


@pytest.mark.parametrize("name", POLICIES)
def test_a_removed_block_is_never_given_away(name: str) -> None:
    rng = random.Random(1)
    policy = POLICIES[name]()
    resting: set[int] = set()
    for _ in range(3_000):
        block = rng.randrange(20)
        if block in resting:
            policy.remove(block)
            resting.remove(block)
        else:
            policy.release(block, rng.randrange(5), rng.randrange(5))
            resting.add(block)
        if rng.random() < 0.1 and resting:
            gone = policy.evict()
            assert gone in resting
            resting.remove(gone)
        assert set(policy.ranks) == resting


def test_nothing_is_kept_of_blocks_that_were_removed() -> None:
    blocks = LeastFrequentlyUsed()
    for number in range(10_000):
        blocks.release(number % 3, number, 0)
        blocks.remove(number % 3)
    assert not blocks._blocks


def known_blocks(pool: BlockPool, count: int) -> list[int]:
    """Blocks that are taken, known under hashes b"0", b"1"… and given back, the first first."""
    blocks = pool.take(count)
    assert pool.cache is not None
    for number, block in enumerate(blocks):
        pool.cache.insert(str(number).encode(), block, make_request("owner", 1, priority=0))
    for block in blocks:
        pool.free([block])
    return blocks


def test_free_blocks_are_taken_before_known_ones_and_what_is_taken_is_known_no_more() -> None:
    pool = BlockPool(4, PrefixCache("lru"))
    known = known_blocks(pool, 2)
    assert (pool.available, pool.used) == (4, 0)
    assert not set(pool.take(2)) & set(known)
    assert pool.take(1) == known[:1]
    assert pool.cache is not None
    assert pool.cache.get(b"0") is None
    assert pool.cache.get(b"1") == known[1]


def test_a_blocks_rest_ends_with_the_time_to_live_and_a_hit_gives_it_another_one() -> None:
    pool = BlockPool(4, PrefixCache("lru", ttl=10.0))
    pool.tick(100.0)
    first, second = known_blocks(pool, 2)
    cache = pool.cache
    assert cache is not None
    pool.tick(105.0)
    pool.share(first)
    pool.free([first])
    pool.tick(109.9)
    assert len(cache.unused) == 2
    pool.tick(110.0)
    assert (cache.get(b"0"), cache.get(b"1")) == (first, None)
    pool.tick(115.0)
    assert len(cache.unused) == 0
    pool.check_integrity([])
    assert sorted(pool.take(4)) == [0, 1, 2, 3]
    assert second in range(4)


def test_a_used_block_does_not_expire() -> None:
    pool = BlockPool(2, PrefixCache("lru", ttl=1.0))
    (block,) = pool.take(1)
    assert pool.cache is not None
    pool.cache.insert(b"x", block, make_request("owner", 1, priority=0))
    pool.tick(50.0)
    assert pool.cache.get(b"x") == block
    pool.check_integrity([block])


def test_what_expired_is_not_found_by_a_request() -> None:
    scheduler, device = make_engine(ttl=5.0)
    for name, at, cached in (("a", 0.0, 0), ("b", 4.0, 32), ("c", 8.9, 32), ("d", 14.0, 0)):
        add(scheduler, name, range(40), max_tokens=1)
        _, outputs = step(scheduler, device, at)
        assert [output.cached_tokens for output in outputs] == [cached]


def fill(eviction: str) -> dict[str, int]:
    """A pool of 8 blocks, prompts of 2 full blocks each; cached tokens when asked for once more.

    "old" was used most, "vip" by an important request, "last" most recently; three more blocks are needed meanwhile.
    """
    scheduler, device = make_engine(blocks=8, seqs=1, eviction=eviction)
    prompts = {name: [ord(name[0]) * 100 + i for i in range(32)] for name in ("old", "vip", "last")}

    def ask(name: str, number: int, priority: int = 0) -> int:
        add(scheduler, f"{name}{number}", [*prompts[name], 5], max_tokens=1, priority=priority)
        return run(scheduler, device=device)[-1].cached_tokens

    for number in range(4):
        ask("old", number, priority=9)
    ask("vip", 0, priority=-1)
    ask("last", 0, priority=5)
    add(scheduler, "other", 70, max_tokens=1, priority=7)  # 5 blocks, and 2 are free
    run(scheduler, device=device)
    pool = scheduler.memory.pools[0]
    assert pool.cache is not None
    kept = {}
    for name, prompt in prompts.items():
        digests = make_state("probe", prompt)
        hashes = extend_hashes(digests, 2, 16)
        kept[name] = sum(pool.cache.get(digest) is not None for digest in hashes)
    return kept


def test_each_policy_keeps_what_it_is_for() -> None:
    """Beginnings go after what follows them, so of two blocks the first one stays."""
    assert fill("lru") == {"old": 0, "vip": 1, "last": 2}
    assert fill("lfu") == {"old": 2, "vip": 0, "last": 1}
    assert fill("priority") == {"old": 0, "vip": 2, "last": 1}


def test_a_request_that_waits_does_not_make_its_prefix_look_popular() -> None:
    """Every plan looks whether its blocks are there; that is not a use."""
    scheduler, device = make_engine(blocks=8, seqs=2, eviction="lfu", max_preemptions=0)
    add(scheduler, "a", [*range(32), 1], max_tokens=1)
    run(scheduler, device=device)
    add(scheduler, "long", 40, max_tokens=50)  # 6 blocks reserved
    step(scheduler, device)
    add(scheduler, "b", [*range(32), *range(900, 930)], max_tokens=1)
    cache = scheduler.memory.pools[0].cache
    assert cache is not None
    block = cache.get(extend_hashes(make_state("probe", range(32)), 1, 16)[0])
    assert block is not None
    for _ in range(20):
        step(scheduler, device)
    assert cache.known[block].uses == 0
