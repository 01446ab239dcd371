"""The prefix cache: computed blocks are found again, in groups of every kind, and only by permitted requests."""

from __future__ import annotations

import pytest
from simulation import add, answer_of, expected, make_engine, make_request, run, step

from octavo_engine.core.kv_groups import NO_BLOCK, KVGroup
from octavo_engine.core.prefix_cache import chain_hash, root_hash
from octavo_engine.engine.scheduler_stats import StatsReader

GROUPS = {
    "full": [KVGroup(32)],
    "sliding": [KVGroup(32, "sliding", 18)],
    "recurrent": [KVGroup(32, "recurrent")],
    "all": [KVGroup(32), KVGroup(32, "sliding", 18), KVGroup(32, "recurrent")],
}
SHARED = list(range(48))


@pytest.mark.parametrize("kinds", GROUPS)
def test_a_prefix_is_computed_once_and_its_hits_are_counted(kinds: str) -> None:
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=32)
    for name, last in (("a", 1), ("b", 2)):
        request = add(scheduler, name, [*SHARED, last], max_tokens=20)
        outputs = run(scheduler, device=device)
        assert answer_of(outputs, name) == expected(request)
        cached = {output.cached_tokens for output in outputs if len(output.token_ids) and output.finish_reason}
        assert cached == {0 if name == "a" else 48}
    stats = StatsReader(scheduler).read()
    assert (stats.prefix_queried_tokens, stats.prefix_hit_tokens) == (98, 48)


@pytest.mark.parametrize("kinds", GROUPS)
@pytest.mark.parametrize("shared", [15, 16, 31, 32, 47, 48])
def test_a_hit_ends_at_the_last_block_boundary_that_is_shared(kinds: str, shared: int) -> None:
    """Recurrent groups leave snapshots where chunks end; with chunks of a block that is at every boundary."""
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=32, tokens=16)
    add(scheduler, "a", [*SHARED, 1], max_tokens=3)
    run(scheduler, device=device)
    request = add(scheduler, "b", [*SHARED[:shared], 777, 778], max_tokens=30)
    outputs = run(scheduler, device=device)
    assert outputs[-1].cached_tokens == shared // 16 * 16
    assert answer_of(outputs, "b") == expected(request)


@pytest.mark.parametrize("kinds", GROUPS)
def test_of_a_prompt_that_is_known_in_full_the_last_token_is_computed(kinds: str) -> None:
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=32, tokens=16)
    for name in "ab":
        request = add(scheduler, name, SHARED, max_tokens=5)
        outputs = run(scheduler, device=device)
        assert answer_of(outputs, name) == expected(request)
    assert outputs[-1].cached_tokens == 32


def test_answers_are_found_again_as_part_of_the_next_prompt() -> None:
    scheduler, device = make_engine()
    request = add(scheduler, "a", 20, max_tokens=30)
    run(scheduler, device=device)
    turns = request.token_ids[:20] + expected(request)
    add(scheduler, "b", [*turns, 5], max_tokens=2)
    assert run(scheduler, device=device)[-1].cached_tokens == 48


def test_a_sliding_group_matches_its_window_only() -> None:
    """A window of 18 before token 48 begins at token 31, the last of the second block."""
    scheduler, device = make_engine(groups=GROUPS["sliding"], blocks=32)
    add(scheduler, "a", [*SHARED, 1], max_tokens=2)
    run(scheduler, device=device)
    request = add(scheduler, "b", [*SHARED, 2], max_tokens=9)
    step(scheduler, device)
    assert request.cached_tokens == 48
    assert request.block_tables[0][0] == NO_BLOCK
    assert NO_BLOCK not in request.block_tables[0][1:]
    assert scheduler.memory.blocks_used == 3


@pytest.mark.parametrize("policy", ["lru", "lfu", "priority"])
def test_what_has_left_a_window_makes_room_for_windows(policy: str) -> None:
    """Each turn leaves a dozen blocks behind its window, and two or three in it: what the next one asks for."""
    scheduler, device = make_engine(groups=[KVGroup(512), KVGroup(40, "sliding", 18)], tokens=32, eviction=policy)
    chats = [make_request(f"chat {number}", 200).prompt_token_ids for number in range(10)]
    for turn, further in enumerate(([], [5] * 8)):
        for number, chat in enumerate(chats):
            request = add(scheduler, f"{turn}-{number}", [*chat, *further], max_tokens=2)
            outputs = run(scheduler, device=device)
            assert (answer_of(outputs, request.request_id), outputs[-1].cached_tokens) == (
                expected(request),
                turn * 192,
            )


def test_a_sliding_groups_hit_needs_nothing_before_the_window() -> None:
    scheduler, device = make_engine(groups=[KVGroup(5, "sliding", 16)], blocks=64, tokens=16)
    prompt = list(range(160))
    for name in "ab":  # far more tokens than the group has slots: only the end can still be known
        request = add(scheduler, name, [*prompt, 5], max_tokens=3)
        outputs = run(scheduler, device=device)
        assert answer_of(outputs, name) == expected(request)
    assert outputs[-1].cached_tokens == 160


def test_of_a_window_of_one_token_a_beginning_is_known_that_was_computed() -> None:
    scheduler, device = make_engine(groups=[KVGroup(5, "sliding", 1)], blocks=64)
    for name, cached in (("a", 0), ("b", 48)):
        request = add(scheduler, name, [*SHARED, 1], max_tokens=9)
        outputs = run(scheduler, device=device)
        assert (answer_of(outputs, name), outputs[-1].cached_tokens) == (expected(request), cached)


@pytest.mark.parametrize("window", [None, 0])
def test_a_group_without_a_window_is_refused(window: int | None) -> None:
    with pytest.raises(ValueError, match="a window of at least 1 token"):
        make_engine(groups=[KVGroup(5, "sliding", window)], blocks=64)


def test_a_state_is_kept_where_a_second_prompt_branches_off() -> None:
    """The first has none there, as nothing marks the place; the second leaves one, at which the third begins."""
    scheduler, device = make_engine(groups=[KVGroup(64), KVGroup(12, "recurrent")], blocks=64, tokens=256)
    for name, cached in (("a", 0), ("b", 0), ("c", 48)):
        request = add(scheduler, name, [*SHARED, *range(ord(name), ord(name) + 40)], max_tokens=40)
        outputs = run(scheduler, device=device)
        assert (answer_of(outputs, name), outputs[-1].cached_tokens) == (expected(request), cached)


def test_two_places_for_each_turn_of_a_conversation_are_enough_for_the_next() -> None:
    """States that an answer has gone past make room first: those at ends of prompts and turns stay."""
    scheduler, device = make_engine(groups=[KVGroup(512), KVGroup(44, "recurrent")], blocks=512, tokens=256)
    chats = [list(make_request(f"chat {number}", 40).prompt_token_ids) for number in range(10)]
    for turn, cached in enumerate((0, 128)):
        for number, chat in enumerate(chats):
            request = add(scheduler, f"{turn}-{number}", chat, max_tokens=100)
            outputs = run(scheduler, device=device)
            assert (answer_of(outputs, request.request_id), outputs[-1].cached_tokens) == (expected(request), cached)
            chats[number] = [*chat, *expected(request), 5]


def test_groups_that_know_different_beginnings_agree_on_what_all_know() -> None:
    """The full group knows 48 tokens, the recurrent one has snapshots at 32 and 48, and 48 is taken from it."""
    groups = [KVGroup(32), KVGroup(32, "recurrent")]
    scheduler, device = make_engine(groups=groups, blocks=32, tokens=32)
    add(scheduler, "a", [*SHARED, 1], max_tokens=2)
    run(scheduler, device=device)
    recurrent = scheduler.memory.pools[1]
    assert recurrent.cache is not None
    digest = root_hash("")
    for first in (0, 16, 32):
        digest = chain_hash(digest, SHARED[first : first + 16])
    block = recurrent.cache.get(digest)
    assert block is not None
    recurrent.share(block)
    recurrent.cache.forget(block)
    recurrent.free([block])
    scheduler.check_integrity()
    request = add(scheduler, "b", [*SHARED, 2], max_tokens=3)
    outputs = run(scheduler, device=device)
    assert outputs[-1].cached_tokens == 32
    assert answer_of(outputs, "b") == expected(request)


@pytest.mark.parametrize("kinds", GROUPS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cache_salt": "tenant-1"}, {"cache_salt": "tenant-2"}),
        ({"cache_salt": "tenant"}, {"cache_salt": "tenant\nsalt"}),
        ({"adapter": "x"}, {"adapter": "y"}),
        ({"adapter": "x"}, {}),
        ({"adapter": "x"}, {"cache_salt": "x"}),
        ({"adapter": "ab", "cache_salt": "c"}, {"adapter": "a", "cache_salt": "bc"}),
    ],
)
def test_what_separates_two_requests_separates_their_blocks(
    kinds: str, one: dict[str, str], other: dict[str, str]
) -> None:
    """The device knows the owners of what it holds, so it would see what is found by the wrong one."""
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=32, tokens=16)
    device.owners = {"a": "one", "b": "other", "c": "one"}
    add(scheduler, "a", range(64), max_tokens=20, **one)
    run(scheduler, device=device)
    add(scheduler, "b", range(64), max_tokens=20, **other)
    assert run(scheduler, device=device)[-1].cached_tokens == 0
    add(scheduler, "c", range(64), max_tokens=20, **one)
    assert run(scheduler, device=device)[-1].cached_tokens == 48, "the first one's are still there"


def test_two_at_once_with_different_salts_share_nothing_either() -> None:
    scheduler, device = make_engine()
    device.owners = {"a": "one", "b": "other"}
    add(scheduler, "a", range(64), max_tokens=20, cache_salt="1")
    step(scheduler, device)
    step(scheduler, device)
    add(scheduler, "b", range(64), max_tokens=20, cache_salt="2")
    assert [o.cached_tokens for o in run(scheduler, device=device) if o.finish_reason] == [0, 0]


def test_the_chain_depends_on_everything_before_it() -> None:
    assert len({root_hash("c", "ab"), root_hash("bc", "a"), root_hash("abc"), root_hash("", "abc")}) == 4
    root = root_hash("")
    assert chain_hash(root, [1, 2]) != chain_hash(root, [2, 1])
    assert chain_hash(chain_hash(root, [1]), [2]) != chain_hash(chain_hash(root, [3]), [2])


def test_a_prompt_dropped_from_its_step_is_not_remembered_as_computed() -> None:
    """A victim of the step it was planned in has computed nothing: its blocks must not be found later."""
    scheduler, device = make_engine(blocks=8, seqs=4, tokens=128)
    requests = [add(scheduler, f"r{n}", 31, max_tokens=60, arrival=n) for n in range(3)]
    outputs = run(scheduler, device=device)
    for request in requests:
        assert answer_of(outputs, request.request_id) == expected(request)
    assert scheduler.counters.preemptions > 0


def test_without_prefix_caching_nothing_is_found() -> None:
    scheduler, device = make_engine(prefix=False)
    for name in "ab":
        add(scheduler, name, SHARED, max_tokens=2)
        assert run(scheduler, device=device)[-1].cached_tokens == 0
    assert scheduler.memory.pools[0].available == scheduler.memory.pools[0].num_blocks
