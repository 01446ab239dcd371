"""Measures draft tokens by prompt lookup (`--speculative-config`): answers with and without them in turns.

Two kinds of prompts: `edit` asks for a text of the prompt to be repeated with a change, so that the prompt has most of
the answer; `story` asks for a free text, where guesses are mostly wrong. Answers are the same with and without drafts,
except for rounding: in bfloat16 a step of several tokens rounds differently than one of a single token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass

import psutil
import torch

from bench.report import save
from octavo_engine import LLM, SamplingParams

_DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_CODE = "\n".join(
    f"def read_{name}(path: str) -> list[{kind}]:\n"
    f'    """The {name} in the file at `path`, one a line."""\n'
    f"    with open(path) as file:\n        return [{kind}(line) for line in file]\n"
    for name, kind in (("prices", "float"), ("names", "str"), ("counts", "int"), ("weights", "float"))
)
_STORIES = ("a lighthouse keeper", "a lost umbrella", "two rival bakers", "a train that is late", "the last library")


@dataclass(frozen=True, slots=True)
class Line:
    """The tokens a second for one kind of prompts and one number of users, without and with draft tokens."""

    kind: str
    users: int
    without: float
    with_drafts: float
    accepted: float
    """The share of the draft tokens that were accepted."""


def prompts(kind: str, users: int) -> list[str]:
    """Return a conversation of one message for each user, no two alike."""
    asked = [
        f"Repeat this code, but rename `path` to `file_{number}`:\n\n{_CODE}"
        if kind == "edit"
        else f"Write a story about {_STORIES[number % len(_STORIES)]}, number {number}."
        for number in range(users)
    ]
    return [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in asked]


def rate(llm: LLM, kind: str, users: int, tokens: int) -> float:
    """Return the tokens a second of one run."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    begun = time.perf_counter()
    llm.generate(prompts(kind, users), params)
    return users * tokens / (time.perf_counter() - begun)


def measure(plain: LLM, drafting: LLM, kind: str, users: int, args: argparse.Namespace) -> Line:
    """Return the medians of some rounds, each of one run with and one without drafts; the first of all is a warm-up."""
    found: dict[bool, list[float]] = {False: [], True: []}
    counted = drafting.report()
    for number in range(args.rounds + 1):
        without = rate(plain, kind, users, args.output_len)
        with_drafts = rate(drafting, kind, users, args.output_len)
        if number:
            found[False].append(without)
            found[True].append(with_drafts)
    now = drafting.report()
    drafts, accepted = now.draft_tokens - counted.draft_tokens, now.accepted_tokens - counted.accepted_tokens
    medians = statistics.median(found[False]), statistics.median(found[True])
    return Line(kind, users, *medians, accepted / drafts if drafts else 0.0)


def page(title: str, args: argparse.Namespace, lines: list[Line]) -> str:
    """Return the results as Markdown."""
    head = [
        f"# {title}\n",
        f"`python -m bench.speculative` on {psutil.cpu_count()} cores, PyTorch {torch.__version__}:"
        f" smollm2, bfloat16, answers of {args.output_len} tokens, greedy, medians of {args.rounds} rounds in turns. "
        f"`--speculative-config '{json.dumps(_DRAFTS)}'`.\n",
        "| prompts | users | tokens/s without | with | ratio | drafts accepted |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = (
        f"| {line.kind} | {line.users} | {line.without:.1f} | {line.with_drafts:.1f} "
        f"| {line.with_drafts / line.without:.2f} | {line.accepted:.0%} |"
        for line in lines
    )
    return "\n".join([*head, *rows]) + "\n"


def main() -> None:
    """Entry point of `python -m bench.speculative`."""
    parser = argparse.ArgumentParser(prog="bench.speculative", description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output-len", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="speculative", help="of the result files, after the date")
    args = parser.parse_args()
    settings = {"dtype": "bfloat16", "device": "cpu", "max_model_len": 2048, "kv_cache_memory": 1 << 30}
    plain, drafting = (LLM("smollm2", **settings, **more) for more in ({}, {"speculative_config": json.dumps(_DRAFTS)}))
    lines = [measure(plain, drafting, kind, users, args) for kind in ("edit", "story") for users in args.users]
    result = {"arguments": vars(args), "config": _DRAFTS, "lines": [asdict(line) for line in lines]}
    save(args.name, result, lambda title: page(title, args, lines))


if __name__ == "__main__":
    main()
