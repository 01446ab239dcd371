"""One LLMService with its children and pods, as the watches last reported them. Pure."""
