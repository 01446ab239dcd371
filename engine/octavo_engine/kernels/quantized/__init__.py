"""Triton kernels for weights of 4 and 8 bits whose scales are shared by groups."""
