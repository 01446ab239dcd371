"""Attention in its forms, over the paged cache."""
