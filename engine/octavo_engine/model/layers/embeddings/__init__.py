"""Embeddings of tokens and positions, RoPE, and the heads that compute logits."""
