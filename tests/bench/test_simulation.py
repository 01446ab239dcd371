"""The simulator: the traces that it generates, its cost model, and its results with the real scheduler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median

import pytest

from bench.simulation.cost_model import COSTS, H200_8B
from bench.simulation.measures import by_tenant, kv_waste, measures, ttft
from bench.simulation.plots import draw
from bench.simulation.setup import Setup
from bench.simulation.traces import END, SHAREGPT, SINGLE_TURN, TRACES, Lengths, Load
from octavo_engine.core.step import BlockOp, BlockOpKind, Chunk, StepPlan
from octavo_engine.engine.scheduler_stats import SchedulerStats

SMALL = Setup(requests=60, max_num_seqs=16, blocks=8000)
"""So few may run at once that requests wait for others to end, in all traces but two."""


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_fixed_by_its_seed(name: str) -> None:
    load = Load(300, 10.0, 4096, seed=3)
    assert TRACES[name](load) == TRACES[name](load)
    assert TRACES[name](load) != TRACES[name](Load(300, 10.0, 4096, seed=4))


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_what_was_asked_for(name: str) -> None:
    asks = [ask for ask in TRACES[name](Load(2000, 10.0, 4096)) if ask.tenant != "flood"]
    assert len(asks) == 2000
    assert all(len(ask.prompt) + len(ask.answer) <= 4096 for ask in asks)
    assert all(ask.answer[-1] == END and END not in ask.answer[:-1] for ask in asks)
    assert all(END not in ask.prompt[ask.shared :] for ask in asks)
    if name != "prefix":  # there the turns of a conversation depend on its answers
        assert 2000 / max(ask.at for ask in asks) == pytest.approx(10, rel=0.3)


def test_lengths_have_the_quantiles_they_are_from() -> None:
    asks = TRACES["sharegpt"](Load(4000, 10.0, 1 << 20))
    prompts = sorted(len(ask.prompt) for ask in asks)
    answers = sorted(len(ask.answer) for ask in asks)
    assert (median(prompts), prompts[3600]) == pytest.approx((1730, 5696), rel=0.1)
    assert (median(answers), answers[3600]) == pytest.approx((415, 834), rel=0.1)
    assert SHAREGPT.prompt == Lengths.of_quantiles(1730, 5696)
    singles = TRACES["poisson"](Load(8000, 10.0, 1 << 20))
    assert fmean(len(ask.prompt) for ask in singles) == pytest.approx(161, rel=0.1)
    assert SINGLE_TURN.answer.median < 338


def test_lengths_that_no_context_has_room_for_are_an_error_and_not_drawn_for_ever() -> None:
    with pytest.raises(ValueError, match="256 tokens at least, and 128 are left: raise --max-model-len"):
        TRACES["prefix"](Load(10, 10.0, 512))


def test_turns_of_a_conversation_repeat_what_was_said() -> None:
    asks = TRACES["prefix"](Load(500, 10.0, 8192))
    by_name = {ask.name: ask for ask in asks}
    turns = [ask for ask in asks if ask.after is not None]
    assert len(turns) > 100
    for ask in turns:
        before = by_name[ask.after or ""]
        assert ask.prompt[: ask.shared] == before.prompt + before.answer
    assert len({tuple(ask.prompt[: ask.shared]) for ask in asks if ask.after is None}) == 8


def test_a_flood_comes_on_top_of_the_same_requests() -> None:
    load = Load(500, 10.0, 2048)
    flooded = TRACES["flood"](load)
    assert [ask for ask in flooded if ask.tenant != "flood"] == TRACES["tenants"](load)
    floods = [len(ask.prompt) + len(ask.answer) for ask in flooded if ask.tenant == "flood"]
    assert floods == [2048] * 50


def test_a_step_costs_what_it_moves_and_computes() -> None:
    decode = StepPlan(1, decode_rows=[0, 1], decode_starts=[999, 499])
    cost = H200_8B
    expected = cost.fixed + cost.weights + 2 * cost.per_row + 1500 * cost.per_context
    assert cost.seconds(decode) == pytest.approx(expected)
    prefill = StepPlan(2, chunks=(Chunk(0, 100, 1000, samples=True),))
    pairs = sum(range(101, 1101))
    expected = cost.fixed + 1000 * cost.per_token + cost.per_row + pairs * cost.per_pair
    assert cost.seconds(prefill) == pytest.approx(expected)
    moves = StepPlan(3, block_ops=(BlockOp(BlockOpKind.SWAP_OUT, 0, 1, 1), BlockOp(BlockOpKind.COPY, 0, 1, 2)))
    assert cost.seconds(moves) == pytest.approx(cost.per_swap + cost.per_copy)


def test_costs_are_near_what_was_measured_or_published() -> None:
    one = StepPlan(1, decode_rows=[0], decode_starts=[150])
    assert COSTS["cpu-smollm2"].seconds(one) == pytest.approx(0.029, rel=0.15)
    assert 1 / H200_8B.seconds(one) < 298, "the roofline of 16.1 GB at 4.8 TB/s, in tokens a second"


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("cost", COSTS)
def test_every_request_gets_its_whole_answer(name: str, cost: str) -> None:
    recording = SMALL.changed(f"trace={name},cost={cost},max_model_len=2048,load=1.2").run()
    asked = {timeline.ask.name: len(timeline.ask.answer) for timeline in recording.timelines}
    assert {timeline.ask.name: timeline.tokens for timeline in recording.timelines} == asked
    assert len(recording.gaps) == sum(asked.values()) - len(asked)
    assert name in ("bursts", "prefix") or max(state.waiting for _, state in recording.series) > 0
    assert (ttft(recording.timelines) > 0).all()
    assert recording.device_seconds <= recording.seconds
    assert recording.stats.kv_blocks_used == recording.stats.running == recording.stats.waiting == 0


def test_a_run_is_fixed_by_its_setup() -> None:
    first, second = (SMALL.changed("blocks=2000,load=1.5").run() for _ in range(2))
    assert first.seconds == second.seconds
    assert first.gaps == second.gaps
    assert [state for _, state in first.series] == [state for _, state in second.series]


@pytest.mark.parametrize("name", ["poisson", "bursts", "sharegpt", "prefix"])
def test_less_than_four_percent_of_kv_memory_is_wasted(name: str) -> None:
    setup = Setup(trace=name, requests=150)
    recording = setup.run()
    waste = kv_waste([state for _, state in recording.series], setup.block_size)
    assert 0 < waste < 0.04


def test_waste_is_of_the_slots_that_are_held() -> None:
    states = [
        SchedulerStats(kv_blocks_used=10, kv_wasted_slots=16),
        SchedulerStats(kv_blocks_used=30, kv_wasted_slots=16),
    ]
    assert kv_waste(states, 16) == pytest.approx(32 / 640)


def test_the_prefix_cache_saves_what_conversations_share() -> None:
    cached, uncached = (SMALL.changed(f"trace=prefix,prefix_caching={on}").run() for on in ("true", "false"))
    assert cached.stats.prefix_hit_tokens > 0.5 * cached.stats.prefix_queried_tokens
    assert uncached.stats.prefix_hit_tokens == 0
    assert cached.planned_tokens < 0.5 * uncached.planned_tokens


def test_a_small_pool_preempts_and_says_what_that_costs() -> None:
    recording = SMALL.changed("blocks=1000,load=1").run()
    said = {measure.name: measure.value for measure in measures(recording, 16)}
    assert said["preemptions"] > 0
    assert said["recompute tax"] > 0
    swapping = SMALL.changed("blocks=1000,load=1,swap_blocks=4000").run()
    assert swapping.stats.swapped_in_blocks > 0
    assert swapping.stats.recomputed_tokens < recording.stats.recomputed_tokens


def test_an_itl_target_is_held_by_the_real_scheduler() -> None:
    setup = Setup(requests=300, load=1.2, max_num_batched_tokens=1024)
    free, held = setup.run(), setup.changed("target_itl_p90=0.03").run()
    itl = [{m.name: m.value for m in measures(one, 16)}["ITL p90"] for one in (free, held)]
    assert itl[0] > 40
    assert itl[1] < 31


def test_tenants_are_distinguished() -> None:
    tenants = by_tenant(SMALL.changed("trace=tenants").run())
    assert sorted(tenants) == sorted(f"key{n}" for n in range(10))
    assert sum(tenant["requests"] for tenant in tenants.values()) == SMALL.requests
    assert by_tenant(SMALL.run()) == {}


def test_a_setting_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no setting 'polcy'; there are trace, "):
        SMALL.changed("polcy=fcfs")
    with pytest.raises(ValueError, match="policy must be one of fcfs, priority, not 'random'"):
        SMALL.changed("policy=random")
    with pytest.raises(ValueError, match="neither true nor false"):
        SMALL.changed("prefix-caching=maybe")


def test_pictures_are_drawn(tmp_path: Path) -> None:
    recordings = {name: SMALL.changed(name).run() for name in ("blocks=2000", "blocks=1000")}
    draw(recordings, "two pools", tmp_path / "pools.png")
    assert (tmp_path / "pools.png").read_bytes().startswith(b"\x89PNG")


def test_two_settings_and_a_baseline_stand_side_by_side(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.simulate", "--requests=100", f"--out={tmp_path}"]
    root = Path(__file__).parents[2]
    first = subprocess.run([*command, "--against=blocks=1000"], cwd=root, check=True, capture_output=True, text=True)
    assert "| | sharegpt fcfs | blocks=1000 |" in first.stdout
    stem = tmp_path / "sharegpt-fcfs-h200-8b"
    report = json.loads(stem.with_suffix(".json").read_text())
    assert report["blocks=1000"]["setup"]["blocks"] == 1000
    assert report["sharegpt fcfs"]["measures"]["KV waste"]["value"] < 4
    before = stem.with_suffix(".json").rename(tmp_path / "before.json")
    second = subprocess.run([*command, f"--baseline={before}"], cwd=root, check=True, capture_output=True, text=True)
    assert "| | baseline before | sharegpt fcfs |" in second.stdout
    line = next(line for line in second.stdout.splitlines() if line.startswith("| output tokens"))
    _, _, baseline, again, _ = (cell.strip() for cell in line.split("|"))
    assert baseline == again, "nothing has changed between the two runs"
