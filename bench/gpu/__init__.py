"""Measures the engine on a GPU, against the limits of that GPU: `python -m bench.gpu` (`make bench-gpu`)."""
