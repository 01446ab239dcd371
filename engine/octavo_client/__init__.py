"""Clients for any server with OpenAI's API: `octavo-engine bench` measures it, `octavo-engine chat` talks to it."""
