"""The tests of the C kernels with kernels in which every access to memory is checked."""
