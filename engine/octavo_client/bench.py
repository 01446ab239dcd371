"""`octavo-engine bench URL`: measures tokens a second and the times of requests, at given loads or up to saturation.

Works with any server that has OpenAI's /v1/completions. Requests are streamed, greedy and `ignore_eos`, so that every
answer has the length that was asked for (servers that refuse the parameter: `--no-ignore-eos`; then the table says how
many answers were shorter). In a closed loop (`--concurrency`) each user sends one request after another; in an open
loop (`--rate`) requests arrive at random times, whatever becomes of the earlier ones.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from octavo_client import api, plots
from octavo_client.argument_types import list_of, number_within, whole_number_within
from octavo_client.completions import Client
from octavo_client.errors import ClientError, UsageError
from octavo_client.figures import Level, Load, Report, Timing, heading, now, row, to_json
from octavo_client.load import measure
from octavo_client.saturation import Search, sentence
from octavo_client.whole_file import write_whole
from octavo_client.workload import Dataset, Fixed, Prompt, ShareGPTLike, Workload, read_dataset

_MANY = 1_000_000
_SEARCH_SECONDS = 20.0
"""Seconds for which requests are sent at each load of a search, so that a slow start does not look like overload."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `octavo-engine bench`."""
    api.add_server_arguments(parser)
    _add_load(parser)
    _add_requests(parser)
    _add_search(parser)
    results = parser.add_argument_group("results").add_argument
    results("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    results("--plot", type=Path, action="append", default=[], metavar="FILE", help=plots.HELP)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load").add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        type=list_of(whole_number_within(1, 4096)),
        metavar="N,N",
        help="numbers of users (default: 1,8,32)",
    )
    load.add_argument(
        "--rate",
        type=list_of(number_within(0.001, 10_000)),
        metavar="R,R",
        help="requests per second, at random (Poisson) times",
    )
    load.add_argument(
        "--find-saturation",
        choices=("users", "rate"),
        help="raise users or rate until throughput no longer grows, and print that load",
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    _add_prompts(group)
    _add_answers(group)


def _add_prompts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-prompts",
        type=whole_number_within(1, _MANY),
        default=32,
        metavar="N",
        help="requests at each load (default: 32)",
    )
    add("--workload", choices=("fixed", "sharegpt"), default="fixed", help="lengths of prompts and answers: all the "
        "same, or spread as in ShareGPT (default: fixed)")  # fmt: skip
    add(
        "--dataset",
        type=Path,
        metavar="FILE",
        help="prompts of ShareGPT's JSON, or JSON lines with prompt and output_len",
    )
    add(
        "--input-len",
        type=whole_number_within(1, _MANY),
        metavar="N",
        help="words in a prompt (default: 128); the most, if lengths vary (default: 1024)",
    )


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--output-len",
        type=whole_number_within(1, _MANY),
        metavar="N",
        help="tokens of an answer (default: 64); the most, if lengths vary (default: 1024)",
    )
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers reach their full length even if the model would end them earlier (default: yes)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of lengths, arrivals and the order of a file (default: 0)",
    )
    add(
        "--timeout",
        type=number_within(0.1, 86_400),
        default=600.0,
        metavar="S",
        help="seconds without data after which a request fails (default: 600)",
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    search = parser.add_argument_group("search").add_argument
    search(
        "--max-ttft-p90",
        type=number_within(0.001, _MANY),
        metavar="MS",
        help="stop at a load whose TTFT p90 is higher",
    )
    search(
        "--seconds",
        type=number_within(0.1, 86_400),
        default=_SEARCH_SECONDS,
        metavar="S",
        help="shortest time for which requests come at each load (default: 20)",
    )


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def workload_of(args: argparse.Namespace) -> Workload:
    """Return the workload that the flags describe; UsageError if they contradict each other."""
    varies = args.dataset is not None or args.workload == "sharegpt"
    if args.dataset is not None and args.workload == "sharegpt":
        raise UsageError("--dataset has lengths of its own; give it or --workload sharegpt")
    default = (1024, 1024) if varies else (128, 64)
    words, tokens = (given or own for given, own in zip((args.input_len, args.output_len), default, strict=True))
    if args.dataset is not None:
        return read_dataset(args.dataset, words, tokens)
    return ShareGPTLike(words, tokens) if varies else Fixed(words, tokens)


@dataclass(slots=True)
class _Bench:
    """A run against one server. Each load has its own prompts, as a prefix cache would make later loads faster."""

    args: argparse.Namespace
    client: Client
    workload: Workload
    model: str
    loads: int = 0

    async def complete(self, prompt: Prompt, due: float | None = None) -> Timing:
        """Time one request."""
        return await self.client.complete(self.model, prompt, self.args.ignore_eos, due)

    async def warm_up(self) -> float:
        """Send one request and return its duration in seconds; ClientError if it fails."""
        [prompt] = self.workload.prompts(1, self.args.seed - 1)
        first = await self.complete(prompt)
        if first.error is not None:
            raise ClientError(f"{self.client.base}/completions: {first.error}")
        return first.end

    async def level(self, load: Load) -> Level:
        """Measure one load and print its row."""
        count = self.args.num_prompts
        if self.args.find_saturation:
            at_least = load.value * 2 if load.rate is None else load.rate * self.args.seconds
            count = max(count, math.ceil(at_least))
        self.loads += 1
        seed = self.args.seed + self.loads
        level = await measure(self.complete, self.workload.prompts(count, seed), load, seed)
        say(row(level))
        return level


def _loads(args: argparse.Namespace) -> list[Load]:
    if args.rate is not None:
        return [Load(rate=rate) for rate in args.rate]
    return [Load(users=users) for users in args.concurrency or (1, 8, 32)]


async def _bench(args: argparse.Namespace, workload: Workload) -> Report:
    client = Client(args.url, api.api_key_of(args, os.environ), args.timeout)
    try:
        bench = _Bench(args, client, workload, args.model or await client.first_model())
        seconds = await bench.warm_up()
        report = Report(args.url, bench.model, now(), str(workload), [])
        in_rates = args.rate is not None or args.find_saturation == "rate"
        say(heading(report, "asked r/s" if in_rates else "users"))
        if args.find_saturation:
            search = Search(bench.level, args.max_ttft_p90)
            report.saturation = await (search.rate(1 / seconds) if in_rates else search.users())
            report.levels = search.levels
        else:
            report.levels = [await bench.level(load) for load in _loads(args)]
        return report
    finally:
        await client.close()


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise UsageError for mistakes that would otherwise show only after everything was measured."""
    for flag, file in (("--json", args.json), *(("--plot", file) for file in args.plot)):
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"{flag} {file}: there is no directory {file.parent}")
    if args.max_ttft_p90 is not None and not args.find_saturation:
        raise UsageError("--max-ttft-p90 is a limit of --find-saturation, which was not given")
    plots.check(args.plot)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if any request failed."""
    _check_outputs(args)
    workload = workload_of(args)
    report = asyncio.run(_bench(args, workload))
    if args.json is not None:
        write_whole(args.json, to_json(report).encode())
    for file in args.plot:
        plots.write(file, {report.target: report})
    if report.saturation is not None:
        say(sentence(report.saturation))
    if short := sum(level.short for level in report.levels):
        hint = "the server ignores ignore_eos" if args.ignore_eos else "use --ignore-eos for equal ones"
        say(f"{short} answers had fewer tokens than were asked for: {hint}")
    _say_repeated(workload, max((level.num_prompts for level in report.levels), default=0))
    return _exit_code(report)


def _say_repeated(workload: Workload, requests: int) -> None:
    if isinstance(workload, Dataset) and requests > len(workload.entries):
        say(
            f"{workload.path.name} has {len(workload.entries)} prompts for {requests} requests: some were sent again, "
            "which a prefix cache answers faster"
        )


def _exit_code(report: Report) -> int:
    """Return 1 if requests failed; after a search only if it found no load without failures."""
    failures = [level.first_error for level in report.levels if level.failed]
    if failures:
        sys.stderr.write(f"octavo-engine bench: some requests failed; the first: {failures[0]}\n")
    searched = report.saturation is not None and report.saturation.value is not None
    return 1 if failures and not searched else 0
