"""`octavo-engine bench URL`: tokens a second, time to first token and between tokens, at several numbers of users.

Works with any server that has OpenAI's /v1/completions. Each user sends one streamed request after another: random
words of a fixed number, greedy, `ignore_eos`, so that every answer has the length that was asked for (servers that
refuse the parameter: `--no-ignore-eos`; then the table says how many answers were shorter).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from tqdm import tqdm

from octavo_engine import remote
from octavo_engine.errors import ConfigurationError, OctavoError

_WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part"
)
"""Short, frequent words: one token each, with the space before it, in nearly every vocabulary."""


@dataclass(slots=True)
class Timing:
    """One request as its client saw it; seconds."""

    first_token: float = math.nan
    end: float = math.nan
    between: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None


@dataclass(slots=True)
class Percentiles:
    """Of one measurement, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(slots=True)
class Level:
    """What one number of users got."""

    concurrency: int
    num_prompts: int
    failed: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    short: int
    """Answers that had fewer tokens than were asked for."""
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    first_error: str | None = None


@dataclass(slots=True)
class Report:
    """One run; the shape of --json, and of bench/transformers_generate.py."""

    target: str
    model: str
    time: str
    input_len: int
    output_len: int
    levels: list[Level]


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Nearest-rank percentiles in milliseconds; NaN of nothing."""
    if not seconds:
        return Percentiles(math.nan, math.nan, math.nan, math.nan)
    ordered = sorted(seconds)
    ranks = (ordered[max(0, math.ceil(q * len(ordered)) - 1)] * 1000 for q in (0.5, 0.9, 0.99))
    return Percentiles(sum(ordered) / len(ordered) * 1000, *ranks)


def summarize(concurrency: int, timings: Sequence[Timing], duration: float, output_len: int) -> Level:
    """The figures of one level; failed requests count only as failed."""
    good = [timing for timing in timings if timing.error is None]
    output = sum(timing.output_tokens for timing in good)
    return Level(
        concurrency=concurrency,
        num_prompts=len(timings),
        failed=len(timings) - len(good),
        duration_s=duration,
        prompt_tokens=sum(timing.prompt_tokens for timing in good),
        output_tokens=output,
        short=sum(timing.output_tokens < output_len for timing in good),
        output_tokens_per_s=output / duration,
        requests_per_s=len(good) / duration,
        ttft_ms=percentiles([timing.first_token for timing in good if not math.isnan(timing.first_token)]),
        itl_ms=percentiles([gap for timing in good for gap in timing.between]),
        e2e_ms=percentiles([timing.end for timing in good]),
        first_error=next((timing.error for timing in timings if timing.error is not None), None),
    )


def make_prompts(count: int, words: int, seed: int) -> list[str]:
    """Prompts that share no beginning, the same ones for the same seed."""
    randomness = random.Random(str(seed))  # of an int the sign would not count
    return [" ".join(randomness.choices(_WORDS.split(), k=words)) for _ in range(count)]


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Client:
    """A server under test."""

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        self.base = remote.api_base(url)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx2.AsyncClient(
            headers=remote.headers(api_key), timeout=remote.timeouts(timeout), limits=limits
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def first_model(self) -> str:
        """The first name that /v1/models lists; OctavoError if there is no server or none of its kind."""
        try:
            return remote.first_model(self.base, await self._http.get(f"{self.base}/models"))
        except httpx2.HTTPError as error:
            raise remote.no_answer(self.base, error) from None

    async def complete(self, model: str, prompt: str, output_len: int, ignore_eos: bool) -> Timing:
        """One streamed completion. Never raises for what the server does: it is in `error`."""
        timing = Timing()
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | ({"ignore_eos": True} if ignore_eos else {})
        start = time.perf_counter()
        try:
            async with self._http.stream("POST", f"{self.base}/completions", json=body) as response:
                if response.status_code != 200:
                    timing.error = f"{response.status_code}: {remote.error_message(await response.aread())}"
                    return timing
                await _read_stream(response.aiter_lines(), start, timing)
        except (httpx2.HTTPError, OctavoError) as error:
            timing.error = str(error) or type(error).__name__
        return timing


async def _read_stream(lines: AsyncIterator[str], start: float, timing: Timing) -> None:
    """Fill `timing`; OctavoError for the server's error, or for what is no such stream."""
    last = math.nan
    pieces = 0
    async for line in lines:
        if (event := remote.event_of(line)) is None:
            continue
        if not event:
            timing.end = time.perf_counter() - start
            timing.output_tokens = timing.output_tokens or pieces
            return
        _take_usage(event.get("usage"), timing)
        if any(choice.get("text") for choice in remote.choices_of(event)):
            arrived = time.perf_counter()
            if pieces == 0:
                timing.first_token = arrived - start
            else:
                timing.between.append(arrived - last)
            pieces, last = pieces + 1, arrived
    raise remote.BrokenStreamError("the stream ended without [DONE]")


def _take_usage(usage: Any, timing: Timing) -> None:
    """Servers may send none, or not all of it: then pieces of text count as tokens."""
    if isinstance(usage, dict):
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        timing.prompt_tokens = prompt if isinstance(prompt, int) else timing.prompt_tokens
        timing.output_tokens = output if isinstance(output, int) else timing.output_tokens


async def measure(
    complete: Callable[[str], Awaitable[Timing]], prompts: Sequence[str], output_len: int, concurrency: int
) -> Level:
    """So many users work through all prompts together."""
    waiting = iter(prompts)
    timings: list[Timing] = []

    async def user() -> None:
        for prompt in waiting:
            timings.append(await complete(prompt))
            bar.update()

    with tqdm(total=len(prompts), desc=f"{concurrency} users", unit="request", leave=False, disable=None) as bar:
        start = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(concurrency)))
        return summarize(concurrency, timings, time.perf_counter() - start, output_len)


def heading(report: Report) -> str:
    """What stands above the rows."""
    return (
        f"{report.target}  {report.model}  {report.input_len} words in, {report.output_len} tokens out; times in ms\n"
        f"{'users':>5} {'tokens/s':>9} {'req/s':>6} {'TTFT p50':>9} {'p90':>7} {'p99':>7} "
        f"{'ITL p50':>8} {'p90':>6} {'p99':>6} {'failed':>6} {'short':>6}"
    )


def row(level: Level) -> str:
    """One level for people."""
    first, between = level.ttft_ms, level.itl_ms
    return (
        f"{level.concurrency:>5} {level.output_tokens_per_s:>9.1f} {level.requests_per_s:>6.2f} "
        f"{first.p50:>9.1f} {first.p90:>7.1f} {first.p99:>7.1f} "
        f"{between.p50:>8.1f} {between.p90:>6.1f} {between.p99:>6.1f} {level.failed:>6} {level.short:>6}"
    )


def to_json(report: Report) -> str:
    """The report for programs; what could not be measured is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, float):
            return round(value, 3) if math.isfinite(value) else None
        return value

    return json.dumps(plain(asdict(report)), indent=2) + "\n"


def _levels(text: str) -> list[int]:
    levels = [int(part) for part in text.split(",")]
    if not levels or not all(1 <= level <= 4096 for level in levels):
        raise ValueError
    return levels


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `octavo-engine bench`."""
    remote.add_server_arguments(parser)
    parser.add_argument(
        "--concurrency", type=_levels, default=[1, 8, 32], metavar="N,N", help="numbers of users (default: 1,8,32)"
    )
    parser.add_argument(
        "--num-prompts", type=_positive, default=32, metavar="N", help="requests at each number of users (default: 32)"
    )
    parser.add_argument(
        "--input-len", type=_positive, default=128, metavar="N", help="words in a prompt (default: 128)"
    )
    parser.add_argument(
        "--output-len", type=_positive, default=64, metavar="N", help="tokens of an answer (default: 64)"
    )
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers go on to --output-len whatever the model says (default: yes)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random words (default: 0)")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds of silence that end a request"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _bench(args: argparse.Namespace) -> Report:
    client = Client(args.url, args.api_key, args.timeout)
    try:
        model = args.model or await client.first_model()

        async def complete(prompt: str) -> Timing:
            return await client.complete(model, prompt, args.output_len, args.ignore_eos)

        [warm_up] = make_prompts(1, args.input_len, args.seed - 1)
        if (first := await complete(warm_up)).error is not None:
            raise OctavoError(f"{client.base}/completions: {first.error}")
        report = Report(args.url, model, now(), args.input_len, args.output_len, [])
        say(heading(report))
        for number, concurrency in enumerate(args.concurrency):
            # Other prompts at each level: a prefix cache must not help.
            prompts = make_prompts(args.num_prompts, args.input_len, args.seed + 1 + number)
            report.levels.append(await measure(complete, prompts, args.output_len, concurrency))
            say(row(report.levels[-1]))
        return report
    finally:
        await client.close()


def run(args: argparse.Namespace) -> int:
    """The command; 1 if any request failed."""
    if args.json is not None and not args.json.parent.is_dir():
        raise ConfigurationError(f"--json {args.json}: there is no directory {args.json.parent}")
    report = asyncio.run(_bench(args))
    if args.json is not None:
        args.json.write_text(to_json(report))
    if short := sum(level.short for level in report.levels):
        hint = "the server ignores ignore_eos" if args.ignore_eos else "use --ignore-eos for equal ones"
        say(f"{short} answers had fewer tokens than the {args.output_len} of --output-len: {hint}")
    failures = [level.first_error for level in report.levels if level.failed]
    if failures:
        sys.stderr.write(f"octavo-engine bench: some requests failed; the first: {failures[0]}\n")
    return 1 if failures else 0
