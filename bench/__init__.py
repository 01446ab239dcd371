"""Benchmarks of Octavo, in comparison with other engines, and of its parts."""
