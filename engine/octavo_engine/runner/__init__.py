"""The runner computes a step plan: state table, inputs, forward pass, sampling, and the processes of all ranks."""
