"""The heap of processes that compute: one for all threads, as glibc keeps more freed memory with several."""

from __future__ import annotations

import subprocess
import sys

import pytest

REPORT = """
import ctypes, os, threading
from pathlib import Path

def report(*_, **__):
    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    found = []
    thread = threading.Thread(target=lambda: found.append(malloc(64 << 10)))
    thread.start()
    thread.join()
    [heap] = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    first, last = (int(address, 16) for address in heap.split()[0].split("-"))
    print(first <= found[0] < last, flush=True)
    os._exit(0)
"""
ENGINE = """
import sys
from octavo_engine.engine import process
sys.argv[1:] = ["ipc://unused", "text"]
process.msgspec.json.decode = report
process.main()
"""
RANK = """
import sys
from octavo_engine.engine.startup import rank
sys.argv[1:] = ["1", "2", "3", "4", "5"]
rank.SharedMemoryQueue = report
rank.main()
"""
LLM = """
import octavo_engine.llm
octavo_engine.llm.resolve_model = report
octavo_engine.llm.LLM("a-model")
"""


def in_main_heap(code: str) -> bool:
    """Run a program that calls `report`; return whether another thread's memory was in the main thread's heap."""
    command = [sys.executable, "-c", REPORT + code]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return {"True": True, "False": False}[ran.stdout.strip()]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
def test_threads_of_an_engine_share_the_heap() -> None:
    assert not in_main_heap("report()")
    assert in_main_heap(ENGINE)
    assert in_main_heap(RANK)
    assert in_main_heap(LLM)
