"""`python -m bench.gguf_peers`: compares decoding of the demo's GGUF file by Octavo, llama.cpp and OpenVINO GenAI.

Octavo computes in bfloat16, with the file's blocks kept (`--quantization gguf`) and without; llama.cpp is its own
`llama-batched-bench` (`--llama PATH`), OpenVINO GenAI is imported by another environment's Python (`--openvino PATH`).
A peer that is not given is left out. Each round every engine decodes once at each number of users: output tokens/s
without the prompts. Each engine has a process of its own, as a server has: two of ours in one process, with OpenMP's
default spinning, decoded 1.4 to 2.3 times fewer tokens than one alone. The table has the best round of each, as other
work on the machine only ever makes a round slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from bench.report import save
from octavo_engine.llm import LLM
from octavo_engine.model.source import DEMO_MODEL, resolve_model
from octavo_engine.openmp import sleep_soon
from octavo_engine.sampling_params import SamplingParams

_PROMPT = 16
_OPENVINO = """
import json, sys, time
import openvino_genai as genai
file, threads, users, tokens = sys.argv[1], *map(int, sys.argv[2:])
pipe = genai.LLMPipeline(file, "CPU", INFERENCE_NUM_THREADS=threads)
def seconds(count):
    config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
    config.apply_chat_template = False
    start = time.perf_counter()
    pipe.generate(["one two three four five six seven eight"] * users, config)
    return time.perf_counter() - start
seconds(4)
print(users * tokens / (seconds(tokens + 1) - seconds(1)))
"""
Engine = Callable[[int], float]
"""A function from a number of users to output tokens/s."""
_PEERS_ENVIRONMENT = dict(os.environ)
"""Without `sleep_soon`: llama.cpp too may use GNU OpenMP, and is measured as its users run it."""


class Octavo:
    """One of our engines, in a process that stays between rounds: its threads sleep while others are measured."""

    _llm: LLM
    """The engine of that process."""

    def __init__(self, **settings: Any) -> None:
        self._process = ProcessPoolExecutor(1, get_context("spawn"), initializer=self._load, initargs=(settings,))

    def __call__(self, tokens: int, users: int) -> float:
        """Measure the tokens per second."""
        return self._process.submit(self._measure, tokens, users).result()

    @classmethod
    def _load(cls, settings: dict[str, Any]) -> None:
        cls._llm = LLM(DEMO_MODEL, device="cpu", dtype="bfloat16", **settings)

    @classmethod
    def _measure(cls, tokens: int, users: int) -> float:
        return users * tokens / (cls._seconds(tokens + 1, users) - cls._seconds(1, users))

    @classmethod
    def _seconds(cls, tokens: int, users: int) -> float:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        start = time.perf_counter()
        cls._llm.generate([[1000 + user] * _PROMPT for user in range(users)], params)
        return time.perf_counter() - start


def output_of(command: tuple[str, ...]) -> str:
    """Run a peer and return its standard output."""
    return subprocess.run(command, capture_output=True, text=True, check=True, env=_PEERS_ENVIRONMENT).stdout


def llama(program: Path, file: Path, threads: int, tokens: int, users: int) -> float:
    """Return the tokens/s that llama-batched-bench reports as `speed_tg`."""
    sizes = f"-npp {_PROMPT} -ntg {tokens} -npl {users} -c {users * (_PROMPT + tokens) + 256} -t {threads}"
    command = (str(program), "-m", str(file), *sizes.split(), "--output-format", "jsonl")
    [line] = (line for line in output_of(command).splitlines() if line.startswith("{"))
    return float(json.loads(line)["speed_tg"])


def openvino(python: Path, file: Path, threads: int, tokens: int, users: int) -> float:
    """Measure the tokens per second of OpenVINO GenAI in a process of its own."""
    command = (str(python), "-c", _OPENVINO, str(file), *map(str, (threads, users, tokens)))
    return float(output_of(command).split()[-1])


def page(title: str, args: argparse.Namespace, best: dict[str, dict[int, float]]) -> str:
    """Return the results as Markdown."""
    heads = " | ".join(f"{users} users" for users in args.users)
    lines = [
        f"# {title}\n",
        f"`python -m bench.gguf_peers`: output tokens/s of the demo's GGUF file, the best of {args.rounds} rounds in "
        f"turns, {args.tokens} tokens each, on {psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end.\n",
        f"| engine | {heads} |",
        "| --- |" + " ---: |" * len(args.users),
    ]
    lines += [f"| {name} | {' | '.join(f'{row[users]:.1f}' for users in args.users)} |" for name, row in best.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama", type=Path, metavar="PATH", help="llama-batched-bench")
    parser.add_argument("--openvino", type=Path, metavar="PATH", help="a Python that has openvino_genai")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    file, threads = resolve_model(DEMO_MODEL, None, lambda *_: None).gguf, psutil.cpu_count(logical=False) or 1
    if file is None:
        sys.exit("the demo model is not installed")
    sizes = {"max_model_len": 512, "max_num_seqs": max(args.users), "num_kv_blocks": 64 * max(args.users)}
    sleep_soon(os.environ)  # as the server does
    engines: dict[str, Engine] = {}
    for name, quantization in (("Octavo, gguf", "gguf"), ("Octavo, bfloat16", None)):
        engines[name] = partial(Octavo(quantization=quantization, **sizes), args.tokens)
    if args.llama:
        engines["llama.cpp"] = partial(llama, args.llama, file, threads, args.tokens)
    if args.openvino:
        engines["OpenVINO GenAI"] = partial(openvino, args.openvino, file, threads, args.tokens)
    best = {name: dict.fromkeys(args.users, 0.0) for name in engines}
    for _ in range(args.rounds):
        for users in args.users:
            for name, engine in engines.items():
                best[name][users] = max(best[name][users], engine(users))
                print(f"{name}, {users} users: {best[name][users]:.1f}", flush=True)
    save(
        "gguf-peers", {"best": best, "rounds": args.rounds, "tokens": args.tokens}, lambda name: page(name, args, best)
    )


if __name__ == "__main__":
    main()
