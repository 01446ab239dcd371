"""The HTTP process: OpenAI's routes, authentication, limits, health and metrics."""
