"""HOW to compute a plan: state table, inputs, forward pass, sampling, and the processes that do it."""
