"""OpenAI's Responses API without its memory: a translation to and from the path of chat completions."""
