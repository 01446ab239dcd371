"""`python -m bench.load_generators --guidellm PATH`: compares the figures of `octavo-engine bench` with guidellm's.

Both measure one server in turn, with prompts that no run had before. The server computes on one core and the load
generator on another, since guidellm needs more CPU time than `octavo-engine bench`: where both share all cores with the
server, the table compares what they cost, not what they measure. The order alternates from round to round.

The mean time to the first token is also read from the server's own histogram. If two load generators disagree on it
while each agrees with the server, then they do not measure differently: they sent their requests at different times.

Answers have different lengths. With equal ones all users end in the same step and send their next prompts at the same
moment; then the median TTFT depends on the order in which these arrive, milliseconds apart. The page also has the mean
number of requests at once: a user of guidellm pauses between an answer and the next request, which it builds first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from bench.report import save
from bench.server import ENGINE, octavo

_MODEL = "smollm2"
_WORDS = 64
_SHORTEST, _LONGEST = 64, 128
_HISTOGRAM = "octavo_time_to_first_token_seconds"
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run."""

    tokens_per_s: float
    ttft_ms: float
    """The median."""
    ttft_mean_ms: float
    at_once: float
    """The mean number of requests that were being answered."""
    server_mean_ms: float = math.nan
    """The mean time to the first token by the server's own count, NaN if the server has no such metric."""


@dataclass(frozen=True, slots=True)
class Load:
    """What each run sends: `requests` in all, `users` at once."""

    users: int
    requests: int


def write_prompts(folder: Path, seed: int, requests: int) -> Path:
    """Write the prompts of one run, a JSON object in each line; all runs have the same lengths of answers."""
    draw, file = random.Random(seed), folder / f"{seed}.jsonl"
    lengths = random.Random(requests).choices(range(_SHORTEST, _LONGEST + 1), k=requests)
    prompts = (" ".join(draw.choices(_VOCABULARY.split(), k=_WORDS)) for _ in range(requests))
    lines = (
        {"prompt": prompt, "output_len": length, "output_tokens_count": length}
        for prompt, length in zip(prompts, lengths, strict=True)
    )
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def bench(url: str, prompts: Path, load: Load) -> Figures:
    """Measure by `octavo-engine bench`."""
    out = prompts.with_suffix(".bench.json")
    size = [f"--concurrency={load.users}", f"--num-prompts={load.requests}"]
    command = [str(ENGINE), "bench", url, f"--dataset={prompts}", *size, f"--json={out}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [level] = json.loads(out.read_text())["levels"]
    at_once = level["e2e_ms"]["mean"] / 1000 * level["requests_per_s"]
    return Figures(level["output_tokens_per_s"], level["ttft_ms"]["p50"], level["ttft_ms"]["mean"], at_once)


def guidellm(program: Path, url: str, prompts: Path, load: Load) -> Figures:
    """Measure by guidellm; continuous usage, which it asks for by default, is refused by Octavo."""
    out = prompts.with_suffix(".guidellm.json")
    usage = {"include_usage": True, "continuous_usage_stats": False}
    body = {"stream_options": usage, "temperature": 0, "ignore_eos": True}
    kind = {"kind": "openai_http", "target": url, "request_format": "/v1/completions"}
    command = [
        *(str(program), "run", "--backend", json.dumps({**kind, "extras": {"body": body}})),
        *(
            "--profile",
            f"kind=concurrent,streams={load.users}",
            "--constraint",
            f"kind=max_requests,count={load.requests}",
        ),
        *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={out}"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    rate, ttft = metrics["output_tokens_per_second"], metrics["time_to_first_token_ms"]["successful"]
    at_once = metrics["request_concurrency"]["successful"]["mean"]
    return Figures(rate["successful"]["mean"], ttft["percentiles"]["p50"], ttft["mean"], at_once)


def first_tokens(url: str) -> tuple[float, float]:
    """Return how many first tokens the server has sent, and the sum of the seconds to each; NaN if it does not say."""
    text = httpx2.get(f"{url}/metrics", timeout=10).text
    count, total = (re.findall(rf"^{_HISTOGRAM}_{part}\S* (\S+)$", text, re.MULTILINE) for part in ("count", "sum"))
    return (float(count[0]), float(total[0])) if count and total else (math.nan, math.nan)


def run(program: Path, url: str, rounds: int, load: Load) -> dict[str, list[Figures]]:
    """Measure the server at `url`."""
    figures: dict[str, list[Figures]] = {"guidellm": [], "bench": []}
    with TemporaryDirectory() as folder:
        bench(url, write_prompts(Path(folder), 0, load.users), replace(load, requests=load.users))  # warm-up
        for number in range(rounds):
            for place, name in enumerate(sorted(figures, reverse=number % 2 == 1)):
                prompts = write_prompts(Path(folder), 1 + 2 * number + place, load.requests)
                count, total = first_tokens(url)
                found = bench(url, prompts, load) if name == "bench" else guidellm(program, url, prompts, load)
                later, larger = first_tokens(url)
                found = replace(found, server_mean_ms=1000 * (larger - total) / (later - count))
                figures[name].append(found)
                print(number, name, found, flush=True)
    return figures


def run_beside_octavo(program: Path, rounds: int, load: Load) -> dict[str, list[Figures]]:
    """Start Octavo on the first core, and measure it from the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})
    with octavo(_MODEL, "--max-model-len=2048") as serving:
        os.sched_setaffinity(0, others)
        return run(program, f"http://127.0.0.1:{serving.port}", rounds, load)


def page(title: str, figures: dict[str, list[Figures]], server: str, load: Load) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.load_generators`: `octavo-engine bench` and guidellm in turn on {server}; "
        f"users at once: {load.users}, {load.requests} requests a run, of {_WORDS} words in and "
        f"{_SHORTEST} to {_LONGEST} tokens out.\n",
        "| round | tokens/s guidellm | tokens/s bench | ratio | TTFT p50 guidellm, ms | TTFT p50 bench, ms | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    pairs = list(zip(figures["guidellm"], figures["bench"], strict=True))
    middle = (medians(figures["guidellm"]), medians(figures["bench"]))
    for name, (theirs, ours) in [*((str(i + 1), pair) for i, pair in enumerate(pairs)), ("median", middle)]:
        rate, ttft = ours.tokens_per_s / theirs.tokens_per_s, ours.ttft_ms / theirs.ttft_ms
        lines.append(
            f"| {name} | {theirs.tokens_per_s:.1f} | {ours.tokens_per_s:.1f} | {rate:.3f} | {theirs.ttft_ms:.1f} | "
            f"{ours.ttft_ms:.1f} | {ttft:.3f} |"
        )
    lines += [
        "\nThe mean TTFT of each run, by the load generator and by the server's own count; medians of the rounds:\n",
        "| load generator | its mean TTFT, ms | the server's, ms | difference, ms | requests at once, mean |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, run in zip(figures, middle, strict=True):
        apart = run.ttft_mean_ms - run.server_mean_ms
        lines.append(
            f"| {name} | {run.ttft_mean_ms:.1f} | {run.server_mean_ms:.1f} | {apart:.1f} | {run.at_once:.2f} |"
        )
    return "\n".join(lines) + "\n"


def medians(runs: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(*(statistics.median(getattr(run, each.name) for run in runs) for each in fields(Figures)))


def main() -> None:
    """Entry point of `python -m bench.load_generators`."""
    parser = argparse.ArgumentParser(prog="bench.load_generators", description=__doc__)
    parser.add_argument("--guidellm", type=Path, required=True, help="the program, in an environment of its own")
    parser.add_argument("--url", help="of a server that runs, such as guidellm's mock-server; default: starts Octavo")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--users", type=int, default=4, help="requests at once")
    parser.add_argument("--requests", type=int, default=40, help="requests of a run")
    parser.add_argument("--name", default="load-generators", help="of the result files, after the date")
    args = parser.parse_args()
    load = Load(args.users, args.requests)
    server = args.url or f"{_MODEL} on one core, from the others (load {os.getloadavg()[0]:.1f} before)"
    if args.url:
        figures = run(args.guidellm, args.url, args.rounds, load)
    else:
        figures = run_beside_octavo(args.guidellm, args.rounds, load)
    raw = {name: [asdict(each) for each in runs] for name, runs in figures.items()}
    save(args.name, {**asdict(load), "figures": raw}, lambda title: page(title, figures, server, load))


if __name__ == "__main__":
    main()
