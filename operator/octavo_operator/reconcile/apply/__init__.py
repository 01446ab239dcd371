"""Writes the children of an LLMService: applies, corrects and deletes them."""
