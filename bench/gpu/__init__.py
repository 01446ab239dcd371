"""What the engine reaches on a GPU, compared with the limits of that GPU: `python -m bench.gpu` (`make bench-gpu`)."""
