"""Looking at processes that may end while they are looked at."""

from __future__ import annotations

import psutil


def name(process: psutil.Process) -> str:
    """Its name; empty once it is gone."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def command(process: psutil.Process) -> list[str]:
    """Its arguments; none once it is gone."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    """Whether it runs: neither gone nor a zombie."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
