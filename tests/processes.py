"""Reads properties of processes that may end at any moment."""

from __future__ import annotations

import psutil


def name(process: psutil.Process) -> str:
    """The process's name; empty if it has ended."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def command(process: psutil.Process) -> list[str]:
    """The process's arguments; none if it has ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    """Return True if the process runs: it has not ended and is not a zombie."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
