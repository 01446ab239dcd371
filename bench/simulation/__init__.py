"""Simulates scheduling policies without a device: traces, a cost model and the real scheduler."""
