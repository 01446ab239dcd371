"""Speculative decoding: who proposes draft tokens, and the setting that chooses it."""
