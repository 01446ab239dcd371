"""Tensor parallelism: the part of each layer that a rank has, and the sums of all ranks."""
