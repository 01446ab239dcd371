"""Memory that was freed but is kept by glibc's malloc: its bound in a server, and its return to the kernel.

With another C library, nothing happens here.
"""

from __future__ import annotations

import ctypes
import threading
import time

RETURN_INTERVAL = 20.0
"""Seconds between two returns of freed memory."""
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Parameters of mallopt(3)."""
_LARGE = 256 << 10
"""Bytes of an allocation that is a mapping of its own, which the kernel gets back as soon as it is freed."""
_ARENAS = 2


def keep_little_freed_memory() -> None:
    """Bound what malloc keeps in this process. To be called before it has threads.

    By default malloc has up to 8 heaps for each core, and each freed block of up to 32 MiB makes it keep blocks of that
    size, and twice as much at the end of each heap. Bodies of 8 MB, read in turns by several threads, so left the HTTP
    process with 35 MiB of freed memory.
    """
    _set_malloc_parameter(_MMAP_THRESHOLD, _LARGE)
    _set_malloc_parameter(_ARENA_MAX, _ARENAS)


def use_one_heap() -> None:
    """Let all threads allocate from one heap. To be called before there are threads.

    The heap of a thread that there is already stays, and later threads share it with the main one.

    By default a thread has a heap of its own, made of parts of 64 MiB. Of the temporary tensors of a step, of up to
    32 MiB each, so few fit into what is left of a part that a step of 2,040 tokens held 150 MiB of Gemma 3's 65 MiB,
    and more than the memory plan counts. In one heap it holds 81 to 129 MiB. With a mapping for each tensor it would
    hold 65 MiB, but the kernel clears each page again, which takes 28 % more CPU time for a prompt
    (bench/results/2026-11-29-memory-plan-3.md).
    """
    _set_malloc_parameter(_ARENA_MAX, 1)


def _set_malloc_parameter(parameter: int, value: int) -> None:
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(parameter, value)


def return_freed_memory() -> None:
    """Return freed memory to the kernel, which malloc does by itself only at the end of a heap.

    Dequantizing the demo's GGUF file on four threads left 40 MiB beside 257 MiB of weights, and a large task up to
    200 MB in a text worker.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(ctypes.c_size_t(0))


def keep_returning_freed_memory() -> None:
    """Return freed memory every `RETURN_INTERVAL` seconds from a thread, as long as this process lives.

    The engine process otherwise keeps what steps and the compilation of grammars have freed. A return takes a few
    milliseconds, in which other threads wait only if they allocate memory.
    """

    def keep_returning() -> None:
        while True:
            time.sleep(RETURN_INTERVAL)
            return_freed_memory()

    threading.Thread(target=keep_returning, name="octavo-freed-memory", daemon=True).start()
