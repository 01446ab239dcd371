"""Triton kernels of attention over a paged cache, and of what comes right before it."""
