"""Checks that answers of a real model follow their JSON schemas: 500 random schemas at temperature 1, once each.

Every answer that ends by itself must be valid under its schema, formats included; answers that reach max_tokens are cut
off, and are counted apart. The exit code is 0 only if none is invalid and none is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import time
from collections import Counter
from importlib.metadata import version
from typing import Any

import jsonschema
import openai
import psutil

from bench.report import save
from bench.server import octavo
from tests.structured.random_schemas import random_schema

_FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
"""The checker of all drafts would read `time` as draft 3."""


async def outcome_of(client: openai.AsyncOpenAI, seed: int, tokens: int) -> tuple[str, str, int]:
    """Return what came of one schema (valid, invalid, cut off or refused), why, and the tokens of the answer."""
    schema = random_schema(seed)
    form: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    ask: Any = [{"role": "user", "content": "Write an example of a record as JSON."}]
    try:
        answer = await client.chat.completions.create(
            model="smollm2", messages=ask, response_format=form, temperature=1, seed=seed, max_tokens=tokens
        )
    except openai.BadRequestError as error:
        return "refused", str(error), 0
    [choice] = answer.choices
    used = answer.usage.completion_tokens if answer.usage else 0
    if choice.finish_reason != "stop":
        return "cut off", "", used
    try:
        jsonschema.validate(json.loads(choice.message.content or ""), schema, format_checker=_FORMATS)
    except (ValueError, jsonschema.ValidationError) as error:
        return "invalid", f"schema {seed}: {choice.message.content!r}: {error}"[:2000], used
    return "valid", "", used


async def measure(args: argparse.Namespace, port: int) -> list[tuple[str, str, int]]:
    """Return the outcomes of all schemas, `args.users` of them at once."""
    users = asyncio.Semaphore(args.users)
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=3600
    ) as client:

        async def one(seed: int) -> tuple[str, str, int]:
            async with users:
                return await outcome_of(client, seed, args.tokens)

        return await asyncio.gather(*(one(seed) for seed in range(args.schemas)))


def main() -> int:
    """Return the exit code of `python -m bench.schemas`."""
    parser = argparse.ArgumentParser(prog="bench.schemas", description=__doc__)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of an answer, at most")
    parser.add_argument("--name", default="schemas", help="of the result files, after the date")
    args = parser.parse_args()
    started = time.monotonic()
    with octavo("smollm2", "--dtype=bfloat16", "--max-model-len=1024", f"--max-num-seqs={args.users}") as serving:
        found = asyncio.run(measure(args, serving.port))
    counts = Counter(kind for kind, _, _ in found)
    reasons = [why for _, why, _ in found if why]
    numbers = {kind: counts[kind] for kind in ("valid", "cut off", "invalid", "refused")}
    versions = {"python": platform.python_version(), "llguidance": version("llguidance"), "torch": version("torch")}
    result = {
        "machine": {"cores": psutil.cpu_count(), **versions}, "arguments": vars(args), "outcomes": numbers,
        "reasons": reasons, "tokens": sum(used for _, _, used in found), "seconds": time.monotonic() - started,
    }  # fmt: skip

    def page(title: str) -> str:
        rows = "\n".join(f"| {kind} | {count} |" for kind, count in numbers.items())
        return (
            f"# {title}\n\n`python -m bench.schemas` on {psutil.cpu_count()} cores: smollm2, bfloat16, {args.schemas} "
            f"random schemas, temperature 1, at most {args.tokens} tokens an answer, {args.users} at once; Python "
            f"{versions['python']}, llguidance {versions['llguidance']}, torch {versions['torch']}.\n\n"
            f"| outcome | answers |\n| --- | --- |\n{rows}\n\n" + "\n".join(f"- {why}" for why in reasons)
        ).rstrip() + "\n"

    save(args.name, result, page)
    return 1 if counts["invalid"] or counts["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
