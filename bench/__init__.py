"""Benchmarks of Octavo beside other engines and of its parts."""
