"""The soak's memory counts what a process took for itself, and no pages of files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.process_memory import anonymous_kib

_MIB = 64
_MEASURE = f"""
import json, mmap, psutil
from bench.process_memory import anonymous_mib
taken = []
for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
    before = anonymous_mib([psutil.Process()])
    memory = mmap.mmap(-1, {_MIB} << 20, flags=flags)
    for at in range(0, {_MIB} << 20, mmap.PAGESIZE):
        memory[at] = 1
    taken.append(anonymous_mib([psutil.Process()]) - before)
    memory.close()
print(json.dumps(taken))
"""


def test_memory_of_no_file_counts() -> None:
    """Measured in a process of its own, where no other thread takes memory: anonymous, then shared memory."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, text=True, check=True, cwd=root)
    assert json.loads(done.stdout) == pytest.approx([_MIB, _MIB], abs=_MIB / 8)


ROLLUP = """55d0c0000000-7ffd2f1f2000 ---p 00000000 00:00 0                          [rollup]
Rss:               30000 kB
Pss:               20700 kB
Pss_Anon:           8000 kB
Pss_File:          12000 kB
Pss_Shmem:           700 kB
Anonymous:          9000 kB
Swap:                 90 kB
SwapPss:              50 kB
"""


def test_pages_of_files_do_not_count() -> None:
    """PSS counts them, divided among all programs that map the file, so it changes when another program ends."""
    assert anonymous_kib(ROLLUP) == 8000 + 700 + 50


def test_a_kernel_that_does_not_tell_is_an_error_and_not_nothing() -> None:
    old = "".join(line for line in ROLLUP.splitlines(keepends=True) if not line.startswith("Pss_"))
    with pytest.raises(RuntimeError, match=r"has no Pss_Anon, Pss_Shmem, but Rss, Pss, Anonymous, Swap, SwapPss: use"):
        anonymous_kib(old)
