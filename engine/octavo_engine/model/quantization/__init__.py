"""Quantization schemes, one file each: how linear layers' weights are stored and multiplied with."""
