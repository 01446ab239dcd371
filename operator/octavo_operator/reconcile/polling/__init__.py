"""Polls pods over HTTP for the progress of loading and for their LoRA adapters."""
