"""The C kernels for AVX-512 and AMX with their instructions in plain C, for CPUs that have AVX2 alone."""
