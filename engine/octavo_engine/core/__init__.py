"""WHAT to run next: requests, blocks, admission, scheduling. Pure Python: no torch, no I/O, no clock of its own."""
