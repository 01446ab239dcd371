"""The status of an LLMService and its Events: made from an observation, and written when they change."""
