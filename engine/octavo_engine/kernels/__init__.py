"""Triton kernels, each with its launcher. Nothing here knows of requests, models or configuration."""
