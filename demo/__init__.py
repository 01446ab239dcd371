"""`make demo` and `make serve`: an LLMService answered by a real model on this machine, no cluster needed."""
