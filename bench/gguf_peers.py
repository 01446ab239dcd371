"""`python -m bench.gguf_peers`: compares Octavo, llama.cpp and OpenVINO GenAI on the demo's GGUF file, or another.

Octavo computes in bfloat16, with the file's blocks kept (`--quantization gguf`) and without; llama.cpp is its own
`llama-batched-bench` (`--llama PATH`), OpenVINO GenAI is imported by another environment's Python (`--openvino PATH`).
A peer that is not given is left out. Each round every engine decodes once at each number of users (output tokens/s
without the prompts), and computes one prompt of 1,024 tokens (prompt tokens/s until the first token). Each engine has a
process of its own, as a server has: two of ours in one process, with OpenMP's default spinning, decoded 1.4 to 2.3
times fewer tokens than one alone. The table has the best round of each, as other work on the machine only ever makes a
round slower.
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
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from bench.report import save
from octavo_engine.llm import LLM
from octavo_engine.model.source import DEMO_MODEL, resolve_model
from octavo_engine.process_setup.openmp import sleep_soon
from octavo_engine.sampling_params import SamplingParams

_PROMPT = 16
"""The tokens of each prompt of those that are decoded."""
_LONG_PROMPT = 1024
_OPENVINO = """
import json, sys, time
import openvino_genai as genai
file, threads, users, prompt, tokens = sys.argv[1], *map(int, sys.argv[2:])
pipe = genai.LLMPipeline(file, "CPU", INFERENCE_NUM_THREADS=threads)
def seconds(count, word=" one"):
    config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
    config.apply_chat_template = False
    start = time.perf_counter()
    pipe.generate([word * prompt] * users, config)
    return time.perf_counter() - start
seconds(4, " two")  # other words, since prompts are cached
print(users * tokens / (seconds(tokens + 1) - seconds(1)) if tokens else users * prompt / seconds(1))
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine computes at once."""

    users: int
    prompt: int
    """Tokens of each user's prompt."""
    tokens: int
    """Tokens of each answer, of which the first is not counted; 0: only the prompt is measured."""

    def __str__(self) -> str:
        """Return the table's name of it."""
        return f"{self.users} users" if self.tokens else f"a prompt of {self.prompt:,} tokens"


Engine = Callable[[Load], float]
"""A function to output tokens/s, or to the prompt's tokens/s."""
_PEERS_ENVIRONMENT = dict(os.environ)
"""Without `sleep_soon`: llama.cpp too may use GNU OpenMP, and is measured as its users run it."""


class Octavo:
    """One of our engines, in a process that stays between rounds: its threads sleep while others are measured."""

    _llm: LLM
    """The engine of that process."""

    def __init__(self, **settings: Any) -> None:
        self._process = ProcessPoolExecutor(1, get_context("spawn"), initializer=self._load, initargs=(settings,))

    def __call__(self, load: Load) -> float:
        """Measure the tokens per second."""
        return self._process.submit(self._measure, load).result()

    @classmethod
    def _load(cls, settings: dict[str, Any]) -> None:
        cls._llm = LLM(device="cpu", dtype="bfloat16", enable_prefix_caching=False, **settings)

    @classmethod
    def _measure(cls, load: Load) -> float:
        if not load.tokens:
            return load.users * load.prompt / cls._seconds(load, 1)
        return load.users * load.tokens / (cls._seconds(load, load.tokens + 1) - cls._seconds(load, 1))

    @classmethod
    def _seconds(cls, load: Load, tokens: int) -> float:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        start = time.perf_counter()
        cls._llm.generate([[1000 + user] * load.prompt for user in range(load.users)], params)
        return time.perf_counter() - start


def output_of(command: tuple[str, ...]) -> str:
    """Run a peer and return its standard output."""
    return subprocess.run(command, capture_output=True, text=True, check=True, env=_PEERS_ENVIRONMENT).stdout


def llama(program: Path, file: Path, threads: int, load: Load) -> float:
    """Return the tokens/s that llama-batched-bench reports as `speed_tg` or `speed_pp`."""
    context = load.users * (load.prompt + load.tokens) + 256
    sizes = f"-npp {load.prompt} -ntg {load.tokens or 1} -npl {load.users} -c {context} -t {threads}"
    command = (str(program), "-m", str(file), *sizes.split(), "--output-format", "jsonl")
    [line] = (line for line in output_of(command).splitlines() if line.startswith("{"))
    return float(json.loads(line)["speed_tg" if load.tokens else "speed_pp"])


def openvino(python: Path, file: Path, threads: int, load: Load) -> float:
    """Measure the tokens per second of OpenVINO GenAI in a process of its own."""
    command = (str(python), "-c", _OPENVINO, str(file), *map(str, (threads, load.users, load.prompt, load.tokens)))
    return float(output_of(command).split()[-1])


def page(title: str, args: argparse.Namespace, best: dict[str, dict[str, float]]) -> str:
    """Return the results as Markdown."""
    loads = list(next(iter(best.values())))
    lines = [
        f"# {title}\n",
        f"`python -m bench.gguf_peers`: tokens/s of {args.gguf.name if args.gguf else 'the demo model'}, the best of "
        f"{args.rounds} rounds in turns, {args.tokens} output tokens each, on {psutil.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the end.\n",
        f"| engine | {' | '.join(loads)} |",
        "| --- |" + " ---: |" * len(loads),
    ]
    lines += [f"| {name} | {' | '.join(f'{row[load]:.1f}' for load in loads)} |" for name, row in best.items()]
    return "\n".join(lines) + "\n"


def found_engines(args: argparse.Namespace, file: Path) -> dict[str, Engine]:
    """Return the engines that can be measured, by their names."""
    threads = psutil.cpu_count(logical=False) or 1
    sizes = {"max_model_len": 2048, "max_num_seqs": max(args.users), "num_kv_blocks": max(128, 64 * max(args.users))}
    model = str(args.gguf or DEMO_MODEL)
    engines: dict[str, Engine] = {
        "Octavo, gguf": Octavo(model=model, quantization="gguf", **sizes),
        "Octavo, bfloat16": Octavo(model=model, quantization=None, **sizes),
    }
    if args.llama:
        engines["llama.cpp"] = partial(llama, args.llama, file, threads)
    if args.openvino:
        engines["OpenVINO GenAI"] = partial(openvino, args.openvino, file, threads)
    return engines


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama", type=Path, metavar="PATH", help="llama-batched-bench")
    parser.add_argument("--openvino", type=Path, metavar="PATH", help="a Python that has openvino_genai")
    parser.add_argument("--gguf", type=Path, metavar="PATH", help="a GGUF file in place of the demo's")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="gguf-peers", help="of the result files, after the date")
    args = parser.parse_args()
    file = args.gguf or resolve_model(DEMO_MODEL, None, lambda *_: None).gguf
    if file is None:
        sys.exit("the demo model is not installed")
    sleep_soon(os.environ)  # as the server does
    engines = found_engines(args, file)
    loads = [Load(users, _PROMPT, args.tokens) for users in args.users] + [Load(1, _LONG_PROMPT, 0)]
    best = {name: {str(load): 0.0 for load in loads} for name in engines}
    for _ in range(args.rounds):
        for load in loads:
            for name, engine in engines.items():
                best[name][str(load)] = max(best[name][str(load)], engine(load))
                print(f"{name}, {load}: {best[name][str(load)]:.1f}", flush=True)
    result = {"best": best, "rounds": args.rounds, "tokens": args.tokens}
    save(args.name, result, lambda name: page(name, args, best))


if __name__ == "__main__":
    main()
