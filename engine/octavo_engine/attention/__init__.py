"""Attention over the paged KV cache: one interface, several ways to compute it."""
