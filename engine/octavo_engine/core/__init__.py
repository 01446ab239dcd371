"""The scheduler: requests, blocks, admission and step plans. Pure Python: no torch, no I/O, no clock of its own."""
