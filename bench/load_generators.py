"""`python -m bench.load_generators --guidellm PATH`: compares the figures of `octavo-engine bench` with guidellm's.

Both measure one server in turn, with prompts that no run had before. The server computes on one core and the load
generator on another, since guidellm needs more CPU time than `octavo-engine bench`: where both share all cores with the
server, the table compares what they cost, not what they measure. The order alternates from round to round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import save
from bench.server import ENGINE, octavo

_MODEL = "smollm2"
_USERS, _REQUESTS, _WORDS, _TOKENS = 4, 40, 64, 48
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


def write_prompts(folder: Path, seed: int) -> Path:
    """Write the prompts of one run, a JSON object in each line."""
    draw, file = random.Random(seed), folder / f"{seed}.jsonl"
    prompts = (" ".join(draw.choices(_VOCABULARY.split(), k=_WORDS)) for _ in range(_REQUESTS))
    lengths = {"output_len": _TOKENS, "output_tokens_count": _TOKENS}
    file.write_text("".join(json.dumps({"prompt": prompt, **lengths}) + "\n" for prompt in prompts))
    return file


def bench(url: str, prompts: Path) -> Figures:
    """Measure by `octavo-engine bench`."""
    out = prompts.with_suffix(".bench.json")
    size = [f"--concurrency={_USERS}", f"--num-prompts={_REQUESTS}"]
    command = [str(ENGINE), "bench", url, f"--dataset={prompts}", *size, f"--json={out}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [level] = json.loads(out.read_text())["levels"]
    return Figures(level["output_tokens_per_s"], level["ttft_ms"]["p50"])


def guidellm(program: Path, url: str, prompts: Path) -> Figures:
    """Measure by guidellm; continuous usage, which it asks for by default, is refused by Octavo."""
    out = prompts.with_suffix(".guidellm.json")
    usage = {"include_usage": True, "continuous_usage_stats": False}
    body = {"stream_options": usage, "temperature": 0, "ignore_eos": True}
    kind = {"kind": "openai_http", "target": url, "request_format": "/v1/completions"}
    command = [
        *(str(program), "run", "--backend", json.dumps({**kind, "extras": {"body": body}})),
        *("--profile", f"kind=concurrent,streams={_USERS}", "--constraint", f"kind=max_requests,count={_REQUESTS}"),
        *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={out}"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    rate, ttft = metrics["output_tokens_per_second"], metrics["time_to_first_token_ms"]
    return Figures(rate["successful"]["mean"], ttft["successful"]["percentiles"]["p50"])


def run(program: Path, url: str, rounds: int) -> dict[str, list[Figures]]:
    """Measure the server at `url`."""
    figures: dict[str, list[Figures]] = {"guidellm": [], "bench": []}
    with TemporaryDirectory() as folder:
        bench(url, write_prompts(Path(folder), 0))  # warm-up
        for number in range(rounds):
            for place, name in enumerate(sorted(figures, reverse=number % 2 == 1)):
                prompts = write_prompts(Path(folder), 1 + 2 * number + place)
                found = bench(url, prompts) if name == "bench" else guidellm(program, url, prompts)
                figures[name].append(found)
                print(number, name, found, flush=True)
    return figures


def run_beside_octavo(program: Path, rounds: int) -> dict[str, list[Figures]]:
    """Start Octavo on the first core, and measure it from the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})
    with octavo(_MODEL, "--max-model-len=2048") as serving:
        os.sched_setaffinity(0, others)
        return run(program, f"http://127.0.0.1:{serving.port}", rounds)


def page(title: str, figures: dict[str, list[Figures]], server: str) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        f"`python -m bench.load_generators`: `octavo-engine bench` and guidellm in turn on {server}: {_USERS} users, "
        f"{_REQUESTS} requests of {_WORDS} words in and {_TOKENS} tokens out a run.\n",
        "| round | tokens/s guidellm | tokens/s bench | ratio | TTFT p50 guidellm, ms | TTFT p50 bench, ms | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    pairs = list(zip(figures["guidellm"], figures["bench"], strict=True))
    middle = tuple(
        Figures(*(statistics.median(getattr(run, name) for run in runs) for name in ("tokens_per_s", "ttft_ms")))
        for runs in figures.values()
    )
    for name, (theirs, ours) in [*((str(i + 1), pair) for i, pair in enumerate(pairs)), ("median", middle)]:
        rate, ttft = ours.tokens_per_s / theirs.tokens_per_s, ours.ttft_ms / theirs.ttft_ms
        lines.append(
            f"| {name} | {theirs.tokens_per_s:.1f} | {ours.tokens_per_s:.1f} | {rate:.3f} | {theirs.ttft_ms:.1f} | "
            f"{ours.ttft_ms:.1f} | {ttft:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point of `python -m bench.load_generators`."""
    parser = argparse.ArgumentParser(prog="bench.load_generators", description=__doc__)
    parser.add_argument("--guidellm", type=Path, required=True, help="the program, in an environment of its own")
    parser.add_argument("--url", help="of a server that runs, such as guidellm's mock-server; default: starts Octavo")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--name", default="load-generators", help="of the result files, after the date")
    args = parser.parse_args()
    server = args.url or f"{_MODEL} on one core, from the others (load {os.getloadavg()[0]:.1f} before)"
    figures = run(args.guidellm, args.url, args.rounds) if args.url else run_beside_octavo(args.guidellm, args.rounds)
    raw = {name: [[run.tokens_per_s, run.ttft_ms] for run in runs] for name, runs in figures.items()}
    save(args.name, {"rounds": args.rounds, "figures": raw}, lambda title: page(title, figures, server))


if __name__ == "__main__":
    main()
