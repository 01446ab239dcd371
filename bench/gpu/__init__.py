"""What the engine reaches on a GPU, beside what the GPU allows: `python -m bench.gpu` (`make bench-gpu`)."""
