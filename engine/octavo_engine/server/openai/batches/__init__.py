"""OpenAI's files and batches: requests that are stored in a folder, and answered when no other requests wait."""
