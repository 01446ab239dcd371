"""GGUF files as checkpoints: their format, their headers as config.json, and the names of their tensors."""
