"""Measures the time from the start of a process to a ready engine, with the weights on this machine's disk.

    python -m bench.gpu.startup MODEL '{"device": "cuda"}'

prints the seconds of loading; the process that started it measures the seconds of the whole start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.gpu.context import Context
from bench.gpu.result import Figure, missing, timed

_SECONDS = 240
_DROP = Path("/proc/sys/vm/drop_caches")
_LARGE = 1 << 30
"""Bytes. Of less, what the machine caches altogether does not tell whether it was dropped, and every other program
would read its own files anew: a dry run beside the other tests made each of them import PyTorch from disk, four times.
"""
_FROM_DISK = {
    "from disk, kernels to compile": "TRITON_CACHE_DIR was empty",
    "from disk": "kernels were compiled by an earlier start",
}
"""The target is about the second case: a node's disk keeps the weights in a cache that outlives pods (HostPath, or a
claim on local disks), with the compiled kernels beside them. The first case is a pod with a new cache of its own."""


def startup(context: Context) -> Iterator[Figure]:
    """Measure starts from disk without compiled kernels, from disk with them, then from the page cache.

    The first start compiles the kernels that the others use.
    """
    shape = context.scale.llama
    folder, case = Path(context.checkpoint(shape)), ""
    with tempfile.TemporaryDirectory() as kernels:
        try:
            for case, said in _FROM_DISK.items():
                dropped = drop_page_cache(folder)
                seconds, loading = _ready_after(str(folder), context.settings, kernels)
                note = dropped or "the page cache could not be dropped, so the weights may have come from it"
                note = f"{note}; {said}; {loading:.1f} s of loading"
                yield _seconds(timed(shape.name, "start to ready", case, [seconds], None, note))
            case = "from the page cache"
            starts = range(context.scale.warm_starts)
            warm = [_ready_after(str(folder), context.settings, kernels)[0] for _ in starts]
        except subprocess.SubprocessError as error:
            yield missing(shape.name, "start to ready", f"failed: {str(error)[-400:]}", case)
            return
    if warm:
        yield _seconds(timed(shape.name, "start to ready", case, warm, None))


def _seconds(figure: Figure) -> Figure:
    values = {name: None if (v := getattr(figure, name)) is None else v / 1e3 for name in ("value", "low", "high")}
    return Figure(**{**vars(figure), **values, "unit": "s"})


def _ready_after(model: str, settings: dict[str, Any], kernels: str) -> tuple[float, float]:
    """Return the seconds of the process until it reports that it is ready, and the reported seconds of loading.

    Compiled kernels are read from and kept in the folder `kernels`.
    """
    command = [sys.executable, "-m", "bench.gpu.startup", model, json.dumps(settings)]
    begin = time.perf_counter()
    environment = os.environ | {"TRITON_CACHE_DIR": kernels}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    limit = threading.Timer(_SECONDS, process.kill)  # it must not outlive this part, since it holds the device's memory
    limit.start()
    line = process.stdout.readline()
    seconds = time.perf_counter() - begin
    process.communicate()
    limit.cancel()
    if process.returncode or not line:
        raise subprocess.SubprocessError(f"the process ended with {process.returncode}: {line}")
    return seconds, json.loads(line)["load_seconds"]


def drop_page_cache(folder: Path) -> str:
    """Drop the files of `folder` from the page cache; return how, or "" if they are probably still in it.

    The whole machine's is dropped only for files of `_LARGE` bytes or more.
    """
    size = sum(file.stat().st_size for file in folder.iterdir())
    before = _cached()
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # what is not written yet stays in the cache
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if before - _cached() >= 0.8 * size:
        return "page cache dropped by posix_fadvise"
    if size < _LARGE:
        return ""
    try:
        _DROP.write_text("3")
    except OSError:
        return ""
    return "page cache dropped by drop_caches" if before - _cached() >= 0.8 * size else ""


def _cached() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Cached:")), 0)


def main() -> None:
    """Load the model and print the seconds of loading: the process that is timed."""
    from octavo_engine import LLM

    model, settings = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(model, **settings)
    print(json.dumps({"load_seconds": llm.info.load_seconds}), flush=True)
    llm.close()


if __name__ == "__main__":
    main()
