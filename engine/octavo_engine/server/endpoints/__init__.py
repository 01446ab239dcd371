"""The endpoints beside OpenAI's and Anthropic's: models, adapters, tokenize, health, /openapi.json, playground."""
