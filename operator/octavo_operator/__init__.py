"""Octavo's operator: watches LLMServices, renders what they should be, applies it, reports what is."""

__version__ = "0.1.0"
