"""Embeddings of tokens and positions, RoPE, the heads that compute logits, and what comes after pooling."""
