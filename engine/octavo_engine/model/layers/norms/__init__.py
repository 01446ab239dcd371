"""Normalisation: RMSNorm and LayerNorm, and their gated and sharded forms."""
