"""`octavo-engine bench` with other loads than users in a closed loop: arrivals, mixes, files, saturation, comparisons,
plots."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from octavo_client import bench, compare, load, plots
from octavo_client.errors import UsageError
from octavo_client.figures import Level, Load, Report, Timing, percentiles, summarize, to_json
from octavo_client.saturation import Search, sentence
from octavo_client.workload import Fixed, Prompt, ShareGPTLike, Workload, read_dataset
from tests.api.served import Served


def parse(module: Any, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(arguments)


def test_an_open_loop_sends_at_its_rate_whatever_the_server_does(server: Served, tmp_path: Path) -> None:
    server.play("one two three", gap=0.001)
    out = tmp_path / "figures.json"
    args = ("--rate", "50,100", "--num-prompts", "10", "--input-len", "5", "--output-len", "3", "--json", str(out))
    assert bench.run(parse(bench, server.url, *args)) == 0
    levels = json.loads(out.read_text())["levels"]
    assert [(level["rate"], level["concurrency"], level["num_prompts"]) for level in levels] == [
        (50, None, 10), (100, None, 10),
    ]  # fmt: skip
    for level, seed in zip(levels, (1, 2), strict=True):
        assert level["duration_s"] >= load.arrivals(10, level["rate"], seed)[-1]
        assert level["output_tokens"] == 30


def test_arrivals_are_poisson() -> None:
    times = load.arrivals(20_001, 5.0, seed=0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0
    assert statistics.mean(gaps) == pytest.approx(1 / 5, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 5, rel=0.03)  # an exponential's are equal
    assert times[:5] == load.arrivals(5, 5.0, seed=0) != load.arrivals(5, 5.0, seed=1)


async def test_a_late_client_counts_as_waiting() -> None:
    """A late request's time counts from when it was due, or an overloaded client would flatter the server."""
    dues: list[float] = []

    async def complete(_: Prompt, due: float | None) -> Timing:
        assert due is not None
        dues.append(time.perf_counter() - due)
        time.sleep(0.02)  # a busy client
        return Timing(end=0.1, first_token=0.1)

    level = await load.measure(complete, [Prompt("a", 1)] * 8, Load(rate=10_000.0))
    assert max(dues) > 0.1
    assert level.rate == 10_000.0


def test_lengths_are_spread_as_in_sharegpt() -> None:
    drawn = ShareGPTLike(1 << 20, 1 << 20).prompts(4000, 3)
    words, tokens = [len(each.text.split()) for each in drawn], [each.output_len for each in drawn]
    assert statistics.mean(words) == pytest.approx(161.31, rel=0.1)
    assert statistics.mean(tokens) == pytest.approx(337.99, rel=0.1)
    assert statistics.median(words) == pytest.approx(161.31 / math.sqrt(math.e), rel=0.1)
    bounded = ShareGPTLike(100, 50).prompts(500, 3)
    assert all(4 <= len(each.text.split()) <= 100 and 4 <= each.output_len <= 50 for each in bounded)
    again, other = (ShareGPTLike(100, 50).prompts(500, seed) for seed in (3, 4))
    assert lengths(bounded) == lengths(again) != lengths(other)


@pytest.mark.parametrize("workload", [Fixed(16, 4), ShareGPTLike(100, 50)], ids=str)
def test_a_second_run_finds_none_of_its_prompts_in_a_servers_prefix_cache(workload: Workload) -> None:
    texts = [prompt.text for _ in range(2) for prompt in workload.prompts(20, 3)]
    assert len(set(texts)) == len(texts)


def lengths(prompts: list[Prompt]) -> list[tuple[int, int]]:
    """Words of each prompt, and tokens of its answer."""
    return [(len(prompt.text.split()), prompt.output_len) for prompt in prompts]


def test_a_mix_asks_for_each_answers_own_length(server: Served, tmp_path: Path) -> None:
    server.play(" ".join(["one"] * 40))
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"tell me\u2028of number {n}", "output_len": n} for n in (4, 9, 30, 2000)]
    file.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n", encoding="utf-8")
    args = ("--dataset", str(file), "--concurrency", "2", "--num-prompts", "3")
    assert bench.run(parse(bench, server.url, *args)) == 0
    assert sorted(request.sampling.max_tokens or 0 for request in server.engine.requests[1:]) == [4, 9, 30]


def test_conversations_of_sharegpt_are_read(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "What is the capital?"}, {"from": "gpt", "value": "It is Paris, of course."}]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, {"conversations": []}]))
    assert read_dataset(file, 1024, 1024).entries == (Prompt("What is the capital?", 7),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "line 1 is not JSON"),
        ("[1", "the file is not JSON"),
        ("[1]", "entry 1 is not a conversation"),
        ('{"prompt": "a b c d e"}', "line 1 is not of the form"),
        ('{"prompt": "a b c d e", "output_len": true}', "line 1 is not of the form"),
        ('{"prompt": "a", "output_len": 9}', "has no prompt of 4 to 1024 words"),
        ("", "has no prompt"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(content)
    with pytest.raises(UsageError, match=says):
        bench.run(parse(bench, "http://127.0.0.1:9", "--dataset", str(file)))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--dataset", "/nowhere"), "cannot be read"),
        (("--dataset", "x", "--workload", "sharegpt"), "has lengths of its own"),
        (("--max-ttft-p90", "100"), "limit of --find-saturation"),
        (("--plot", "figures.pdf"), r"must end in .png or .html"),
        (("--plot", "/nowhere/figures.png"), "there is no directory"),
    ],
)
def test_flags_that_contradict_each_other(flags: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        bench.run(parse(bench, "http://127.0.0.1:9", *flags))


def test_without_matplotlib_a_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        bench.run(parse(bench, "http://127.0.0.1:9", "--plot", "figures.png"))


def level_of(load: Load, tokens: float, *, kept_up: float = 1.0, failed: int = 0, ttft: float = 0.01) -> Level:
    level = summarize(load, [Timing(first_token=ttft, end=1.0, output_tokens=1)], 1.0)
    level.output_tokens_per_s, level.kept_up, level.failed = tokens, kept_up, failed
    return level


def searched_users(throughput: dict[int, float], **limits: Any) -> tuple[Any, list[int]]:
    async def run(load: Load) -> Level:
        assert load.users is not None
        tokens = throughput.get(load.users, 0.0)
        return level_of(load, tokens, failed=not tokens, ttft=load.users / 100)

    search = Search(run, **limits)
    return asyncio.run(search.users()), [level.concurrency or 0 for level in search.levels]


def test_users_are_doubled_until_throughput_stops_growing() -> None:
    found, tried = searched_users({1: 100, 2: 190, 4: 300, 8: 310, 16: 999})
    assert (found.value, found.unit, found.output_tokens_per_s) == (4, "users", 300)
    assert tried == [1, 2, 4, 8]
    assert "saturation point: 4 users, 300.0 tokens/s\ncriterion: the fewest users that get 95%" in sentence(found)


def test_requests_that_fail_or_wait_too_long_end_the_search_for_users() -> None:
    assert searched_users({1: 100, 2: 190})[0].value == 2
    assert searched_users({})[0].value is None
    found, tried = searched_users({1: 100, 2: 200, 4: 400, 8: 800}, max_ttft_p90=25.0)
    assert (found.value, tried) == (2, [1, 2, 4])
    assert "TTFT p90 at most 25 ms" in found.criterion


@pytest.mark.parametrize("start", [0.3, 3.0, 7.4, 200.0])
def test_the_highest_rate_that_a_server_keeps_up_with_is_bounded_and_searched(start: float) -> None:
    async def run(load: Load) -> Level:
        assert load.rate is not None
        return level_of(load, 10 * min(load.rate, 7.5), kept_up=min(1.0, 7.5 / load.rate))

    search = Search(run)
    found = asyncio.run(search.rate(start))
    assert 7.5 / 1.1 <= found.value <= 7.5 / 0.85
    assert len(search.levels) < 16


def test_a_rate_that_is_always_too_much_or_never() -> None:
    async def never(load: Load) -> Level:
        return level_of(load, 1.0, kept_up=0.2)

    async def always(load: Load) -> Level:
        return level_of(load, 1.0)

    found = asyncio.run(Search(never).rate(4.0))
    assert found.value is None
    assert "even the lowest load was too much" in sentence(found)
    assert asyncio.run(Search(always).rate(4.0)).value == 4.0 * 2**15


def test_a_queue_that_grows_is_seen_by_what_is_answered_meanwhile() -> None:
    """Requests come every 0.1 s. A server that answers each after 0.25 s keeps up; one that needs 0.2 s for each, one
    after the other, answers half."""
    steady = [Timing(due=n / 10, end=0.25) for n in range(40)]
    behind = [Timing(due=n / 10, end=0.2 * (n + 1) - n / 10) for n in range(40)]
    assert summarize(Load(rate=10), steady, 4.0).kept_up == pytest.approx(1.0, abs=0.06)
    assert summarize(Load(rate=10), behind, 8.0).kept_up == pytest.approx(0.5, abs=0.06)
    assert summarize(Load(rate=10), steady[:1], 1.0).kept_up is None
    assert summarize(Load(users=4), steady, 4.0).kept_up is None


def test_bench_finds_the_saturation_of_a_server(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.play("one two")
    out = tmp_path / "figures.json"
    flags = ("--find-saturation", "users", "--num-prompts", "4", "--output-len", "2", "--input-len", "4")
    assert bench.run(parse(bench, server.url, *flags, "--max-ttft-p90", "0.001", "--json", str(out))) == 0
    assert "no saturation point" in capsys.readouterr().out
    assert bench.run(parse(bench, server.url, *flags, "--max-ttft-p90", "60000", "--json", str(out))) == 0
    report = json.loads(out.read_text())
    assert f"saturation point: {report['saturation']['value']} users" in capsys.readouterr().out
    assert report["levels"][-1]["num_prompts"] >= 2 * report["levels"][-1]["concurrency"]


def written(path: Path, *levels: Level) -> Path:
    path.write_text(to_json(Report("http://x", "m", "t", "128 words in", list(levels))))
    return path


def a_level(users: int, scale: float = 1.0) -> Level:
    times = [percentiles([scale * n / 1000 for n in range(1, 11)]) for _ in range(3)]
    return Level(users, None, 10, 0, 1.0, 10, 10, 0, 100 / scale, 5 / scale, *times)


def test_a_comparison_marks_what_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(tmp_path / "before.json", a_level(1), a_level(8))
    after = written(tmp_path / "after.json", a_level(8, 1.2), a_level(32))
    assert compare.run(parse(compare, str(before), str(after))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.split()[2:3] == ["tokens/s"]] == [
        ["8", "users", "tokens/s", "100.0", "83.3", "0.833", "worse"]
    ]
    assert sum(line.endswith("worse") for line in lines) == 11
    assert not any(line.startswith("1 user ") for line in lines)
    assert compare.run(parse(compare, str(before), str(after), "--tolerance", "21")) == 0
    assert compare.run(parse(compare, str(after), str(before))) == 0  # better is not worse
    assert "0 of 11 figures are worse" in capsys.readouterr().out
    slow, slower = (written(tmp_path / f"{scale}.json", a_level(8, scale)) for scale in (100, 125))
    compare.run(parse(compare, str(slow), str(slower)))
    assert "8 users requests/s 0.05 0.04 0.800 worse" in " ".join(capsys.readouterr().out.split())
    slow, slower = (written(tmp_path / f"{scale}.json", a_level(8, scale)) for scale in (100_000, 125_000))
    compare.run(parse(compare, str(slow), str(slower)))
    assert "8 users requests/s 5e-05 4e-05 0.800 worse" in " ".join(capsys.readouterr().out.split())


def test_a_comparison_without_a_common_load_or_of_other_files(tmp_path: Path) -> None:
    before = written(tmp_path / "before.json", a_level(1))
    with pytest.raises(UsageError, match="no load in common: 1 user and 8 users"):
        compare.run(parse(compare, str(before), str(written(tmp_path / "after.json", a_level(8)))))
    other = tmp_path / "other.json"
    short = json.loads(before.read_text())
    del short["levels"][0]["output_tokens_per_s"]
    for content, says in (
        ("{}", "is not a result"), ("[", "cannot be read"), ('{"levels": [5]}', "is not a result"),
        (json.dumps(short), "is not a result"),
    ):  # fmt: skip
        other.write_text(content)
        with pytest.raises(UsageError, match=says):
            compare.run(parse(compare, str(before), str(other)))


def test_plots_are_a_picture_and_a_page_that_stands_alone(tmp_path: Path) -> None:
    before = written(tmp_path / "before<b>.json", a_level(1), a_level(8))
    after = written(tmp_path / "after.json", a_level(1, 1.2), a_level(8, 1.2))
    png, page = tmp_path / "figures.png", tmp_path / "figures.html"
    compare.run(parse(compare, str(before), str(after), "--plot", str(png), "--plot", str(page)))
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<svg" in text
    assert "before&lt;b&gt;.json" in text
    assert "<b>" not in text
    # Nothing is fetched: all addresses are names of XML, or places within the page.
    assert set(re.findall(r'(?:src|href)="([^#"]*)', text)) <= {""}
    assert "<script" not in text
    assert text.count("<tr>") == 6
