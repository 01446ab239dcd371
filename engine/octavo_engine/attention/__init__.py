"""Attention over the paged KV cache: one interface, and several backends that compute it."""
