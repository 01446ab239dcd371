"""`kubectl octavo`: what a person asks about LLMServices, answered through that person's own kubectl."""
