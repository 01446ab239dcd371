"""Kernels in C for CPUs, compiled by gcc where there is one: `build` makes them, `library` calls them."""
