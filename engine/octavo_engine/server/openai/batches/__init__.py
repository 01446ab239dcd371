"""OpenAI's files and batches: requests that are answered when no other ones wait, kept in a folder."""
