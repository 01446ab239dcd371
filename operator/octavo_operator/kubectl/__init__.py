"""The kubectl plugin `kubectl octavo`: shows, explains and starts LLMServices through the user's own kubectl."""
