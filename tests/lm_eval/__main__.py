"""`make lm-eval`: lm-eval measures SmolLM2 behind a real server, and in transformers, on two tasks made here.

Both read the same checkpoint, in float32. lm-eval has its own environment, .cache/lm-eval, and finds PyTorch and
transformers in this one. The exit code is 0 only if no accuracy differs by more than half a point.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.transformers_generate import load
from tests.api.real_server import RealServer
from tests.lm_eval.tasks import write_tasks

HERE = Path(__file__).parent
VENV = HERE.parents[1] / ".cache" / "lm-eval"
MOST_POINTS = 0.5
_LM_EVAL = "import sys; sys.path.append(sys.argv.pop(1)); from lm_eval.__main__ import cli_evaluate; cli_evaluate()"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A task, how lm-eval asks the server, and what is like it in transformers."""

    task: str
    metric: str
    served_by: str
    path: str
    chat: bool = False


COMPARISONS = (
    Comparison("octavo_kinds", "acc,none", "local-completions", "/v1/completions"),
    Comparison("octavo_sums", "exact_match,number", "local-completions", "/v1/completions"),
    Comparison("octavo_sums", "exact_match,number", "local-chat-completions", "/v1/chat/completions", chat=True),
)


def install() -> Path:
    """lm-eval's packages, where they are; free where nothing has changed."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    subprocess.run([*uv, "--requirements", HERE / "requirements.txt"], check=True)
    return next((VENV / "lib").glob("python3.*")) / "site-packages"


def evaluate(packages: Path, tasks: Path, comparison: Comparison, model: str, arguments: Mapping[str, object]) -> float:
    """The accuracy that lm-eval finds, in points."""
    with tempfile.TemporaryDirectory() as found:
        command = [sys.executable, "-c", _LM_EVAL, str(packages), "--model", model, "--tasks", comparison.task]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
        command += ["--include_path", str(tasks), "--output_path", found, "--batch_size", "16", "--device", "cpu"]
        command += ["--apply_chat_template"] if comparison.chat else []
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": found, "OPENAI_API_KEY": "none"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3600)
        if run.returncode:
            raise SystemExit(run.stderr)
        [results] = Path(found).rglob("results_*.json")
        score: float = json.loads(results.read_text())["results"][comparison.task][comparison.metric]
        return score * 100


def compare(packages: Path, tasks: Path, checkpoint: Path, server: RealServer, comparison: Comparison) -> bool:
    """Print both accuracies; return True if they are the same within MOST_POINTS."""
    began = time.monotonic()
    theirs = {"pretrained": checkpoint, "dtype": "float32"}
    ours: dict[str, object] = {
        "model": "smollm2", "base_url": server.url + comparison.path, "num_concurrent": 4 if comparison.chat else 1,
        "tokenizer": checkpoint, "tokenizer_backend": "huggingface", "max_length": 1024, "timeout": 1200,
        "max_retries": 10,
    }  # fmt: skip
    transformers = evaluate(packages, tasks, comparison, "hf", theirs)
    served = evaluate(packages, tasks, comparison, comparison.served_by, ours)
    form = " with the chat template" if comparison.chat else ""
    print(
        f"{comparison.task}{form}: transformers {transformers:.1f} %, {comparison.served_by} {served:.1f} % "
        f"({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    return abs(transformers - served) <= MOST_POINTS


def main() -> int:
    """The exit code."""
    packages = install()
    with tempfile.TemporaryDirectory() as folder:
        tasks, checkpoint = Path(folder), Path(folder) / "smollm2"
        write_tasks(tasks)
        model, tokenizer = load("smollm2", torch.float32)
        model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        del model
        options = ("--max-model-len", "1024", "--num-kv-blocks", "512", "--max-num-seqs", "16")
        server = RealServer(tasks / "log", str(checkpoint), "--served-model-name", "smollm2", *options)
        try:
            server.wait_until(server.is_ready)
            results = [compare(packages, tasks, checkpoint, server, each) for each in COMPARISONS]
            return 0 if all(results) else 1
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
