"""The endpoints that OpenAI's clients know."""
