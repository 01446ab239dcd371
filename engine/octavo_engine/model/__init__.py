"""Reads a model's config.json and weights, and builds the decoder that computes logits from tokens."""
