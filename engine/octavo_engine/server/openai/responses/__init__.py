"""OpenAI's Responses API, without stored responses: requests are translated to chat completions, and answers back."""
