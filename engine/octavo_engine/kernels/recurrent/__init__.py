"""Triton kernels of layers with a recurrent state."""
