"""`make demo` and `make serve`: run an LLMService with a real model on this machine, without a cluster."""
