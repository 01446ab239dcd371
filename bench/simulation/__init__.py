"""Traces, a cost model and the real scheduler: what a policy does, without any device."""
