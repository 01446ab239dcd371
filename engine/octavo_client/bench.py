"""`octavo-engine bench URL`: tokens a second, time to first token and between tokens, at several numbers of users.

Works with any server that has OpenAI's /v1/completions. Each user sends one streamed request after another: random
words of a fixed number, greedy, `ignore_eos`, so that every answer has the length that was asked for (servers that
refuse the parameter: `--no-ignore-eos`; then the table says how many answers were shorter).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from octavo_client import api
from octavo_client.completions import Client
from octavo_client.errors import ClientError, UsageError
from octavo_client.figures import Level, Report, Timing, heading, now, row, summarize, to_json

_WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part"
)
"""Short, frequent words: one token each, with the space before it, in nearly every vocabulary."""


def make_prompts(count: int, words: int, seed: int) -> list[str]:
    """Return `count` prompts of random words; none shares its beginning, and a seed always gives the same ones."""
    randomness = random.Random(str(seed))  # the sign of an int would not count
    return [" ".join(randomness.choices(_WORDS.split(), k=words)) for _ in range(count)]


async def measure(
    complete: Callable[[str], Awaitable[Timing]], prompts: Sequence[str], output_len: int, concurrency: int
) -> Level:
    """Let `concurrency` users work through all prompts together, and return their figures."""
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
    """Add the arguments of `octavo-engine bench`."""
    api.add_server_arguments(parser)
    add = parser.add_argument
    add("--concurrency", type=_levels, default=[1, 8, 32], metavar="N,N", help="numbers of users (default: 1,8,32)")
    add("--num-prompts", type=_positive, default=32, metavar="N", help="requests at each number of users (default: 32)")
    add("--input-len", type=_positive, default=128, metavar="N", help="words in a prompt (default: 128)")
    add("--output-len", type=_positive, default=64, metavar="N", help="tokens of an answer (default: 64)")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers go on to --output-len whatever the model says (default: yes)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the random words (default: 0)")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds of silence that end a request")
    add("--json", type=Path, metavar="FILE", help="write the figures there, too")


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
            raise ClientError(f"{client.base}/completions: {first.error}")
        report = Report(args.url, model, now(), args.input_len, args.output_len, [])
        say(heading(report))
        for number, concurrency in enumerate(args.concurrency):
            # Each level has prompts of its own: else a prefix cache would help the later ones.
            prompts = make_prompts(args.num_prompts, args.input_len, args.seed + 1 + number)
            report.levels.append(await measure(complete, prompts, args.output_len, concurrency))
            say(row(report.levels[-1]))
        return report
    finally:
        await client.close()


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if any request failed."""
    if args.json is not None and not args.json.parent.is_dir():
        raise UsageError(f"--json {args.json}: there is no directory {args.json.parent}")
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
