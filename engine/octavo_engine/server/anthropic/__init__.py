"""Anthropic's Messages API: a translation to and from the path that OpenAI's chat completions take."""
