"""Speculative decoding: the proposers of draft tokens, and the setting that chooses one."""
