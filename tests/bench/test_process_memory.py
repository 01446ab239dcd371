"""The soak's memory counts what a process took for itself, and no pages of files."""

from __future__ import annotations

import mmap
import tempfile

import psutil
import pytest

from bench.process_memory import anonymous_mib

_SIZE = 8 << 20


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["anonymous", "shared memory"])
def test_memory_of_no_file_counts(flags: int) -> None:
    this = [psutil.Process()]
    before = anonymous_mib(this)
    with mmap.mmap(-1, _SIZE, flags=flags) as taken:
        taken[:: mmap.PAGESIZE] = b"x" * (_SIZE // mmap.PAGESIZE)
        assert anonymous_mib(this) - before == pytest.approx(_SIZE / (1 << 20), abs=1)


def test_pages_of_files_do_not_count() -> None:
    """PSS counts them, divided among all programs that map the file, so it changes when another program ends."""
    this = psutil.Process()
    with tempfile.TemporaryFile(dir="/var/tmp") as file:  # /tmp may be in memory, and its files shared memory
        file.truncate(_SIZE)
        before, resident = anonymous_mib([this]), this.memory_info().rss
        with mmap.mmap(file.fileno(), _SIZE, prot=mmap.PROT_READ) as mapped:
            assert not any(mapped[:: mmap.PAGESIZE])
            assert this.memory_info().rss - resident > _SIZE / 2
            assert anonymous_mib([this]) - before < 1
