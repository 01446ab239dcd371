"""Anthropic's Messages API: requests are translated to OpenAI's chat completions, and answers back."""
